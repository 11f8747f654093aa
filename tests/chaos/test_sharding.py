"""Sharded runs: under faults, with too little memory for a whole model, and of every recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Zygote
from tests.support.processruns import Plan, exported_shapes
from tests.support.runs import bits, log, write_spec
from tests.support.worker_kills import start, train_undisturbed_and_killed

LIMIT = 2750 * 2**20
"""Bytes of private memory, of which half are those of an interpreter with torch."""

LARGE = """\
spec_version = 1
recipe = "clm"
[task]
length = 32
tokenizer = { vocab_size = 300 }
[model]
type = "gpt2"
[model.config]
n_embd = 512
n_layer = 24
n_head = 8
[data.files]
train = "train.txt"
validation = "validation.txt"
[train]
updates = 3
batch_size = 4
learning_rate = 1e-4
[evaluate]
every = "end"
predictions = 0
[log]
every = 1
[report]
enabled = false
"""


SHORT = {
    "train__updates": 4,
    "evaluate__every": 4,
    "checkpoint__every": 2,
    "data__workers": 0,
    "report__enabled": False,
}
RECIPES = [
    "mim",
    "mlm",
    "swag",
    "contrib/chat",
    "contrib/distillation",
    "contrib/freeze_and_layerwise_lr",
    "contrib/adversarial",
    "contrib/image_classification",
    "contrib/instance_segmentation",
    "contrib/preference",
    "contrib/question_answering",
    "contrib/reward",
    "contrib/semantic_segmentation",
    "contrib/seq2seq",
    "contrib/token_classification",
    "contrib/two_tower",
]


@pytest.mark.chaos
def test_a_model_too_large_for_one_process_trains_on_two(tmp_path: Path) -> None:
    """76 million weights: 1.2 GB with their gradients and the optimizer's state, 0.6 GB in each of two processes."""
    (tmp_path / "spec.toml").write_text(LARGE)
    (tmp_path / "train.txt").write_text("the old sailor waits near the harbour while gulls cry above him\n" * 40)
    (tmp_path / "validation.txt").write_text("the boats leave the harbour every morning and wait .\n" * 10)
    alone = start("run", "spec.toml", "--out", "one", cwd=tmp_path, limit=LIMIT)
    _, errors = alone.communicate(timeout=300)
    assert alone.returncode != 0
    assert "memory" in errors
    options = ["--processes", "2", "--set", 'launch.shard="full"']
    two = start("run", "spec.toml", "--out", "two", *options, cwd=tmp_path, limit=LIMIT)
    _, errors = two.communicate(timeout=300)
    assert two.returncode == 0, errors
    assert len(log(tmp_path / "two", "update")) == 3


@pytest.mark.chaos
def test_any_process_may_be_killed_at_any_moment(zygote: Zygote, tmp_path: Path) -> None:
    options = ["--set", 'launch.shard="full"', "--set", "train.updates=200"]
    whole, killed = train_undisturbed_and_killed(write_spec(tmp_path), *options, kills=6)
    assert bits(zygote, killed) == bits(zygote, whole)


def require_same_run(folder: Path, spec: str, **settings: object) -> None:
    """Require of a sample that it ends with shards where it ends without, and one process too."""
    plan, path = Plan(folder), Path(f"specs/{spec}.toml").absolute()
    for shard in ("none", "full"):
        plan.train(shard, path, sample=True, launch__shard=shard, **{**SHORT, **settings})
    plan.execute()
    plan.train("one", path, sample=True, **{**SHORT, **settings})
    plan.execute(processes=1)
    for name in ("none", "one"):
        for kind, key in (("update", "loss"), ("evaluate", "metrics")):
            found = [[line[key] for line in log(folder / run, kind)] for run in ("full", name)]
            assert len(found[0]) == len(found[1]) > 0
            for here, there in zip(*found, strict=True):
                assert drop_missing(here) == pytest.approx(drop_missing(there), rel=1e-3, abs=1e-5)
    assert exported_shapes(folder / "full") == exported_shapes(folder / "none")


def drop_missing(value: Any) -> Any:
    """Return the metrics that have a value; an average over classes that are not there has none."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value


@pytest.mark.chaos
@pytest.mark.parametrize("spec", RECIPES)
def test_a_recipe_ends_where_replicas_and_one_process_end(spec: str, tmp_path: Path) -> None:
    require_same_run(tmp_path, spec, train__batch_size=8, schedule__warmup=0)


@pytest.mark.chaos
@pytest.mark.parametrize("optimizer", ["sgd", "lion", "rmsprop", "adagrad"])
def test_an_optimizer_ends_where_replicas_and_one_process_end(optimizer: str, tmp_path: Path) -> None:
    require_same_run(tmp_path, "clm", optimizer__name=optimizer, train__batch_size=8, schedule__warmup=0)
