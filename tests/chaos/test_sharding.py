"""Sharded runs: under faults, with too little memory for a whole model, and of every recipe."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import Zygote
from tests.support.runs import bits, log, resume, write_spec
from tests.support.shardruns import Plan, exported_shapes

RECIPE = Path(sys.executable).with_name("recipe")
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


def start(*arguments: str, cwd: Path, limit: int | None = None) -> subprocess.Popen[str]:
    def constrain() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    return subprocess.Popen(
        [str(RECIPE), *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=constrain,
    )


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
    spec, chance = write_spec(tmp_path), random.Random(7)
    options = ["--processes", "2", "--set", 'launch.shard="full"', "--set", "train.updates=60"]
    whole = start("run", str(spec), "--out", "whole", *options, cwd=tmp_path)
    whole.communicate(timeout=300)
    assert whole.returncode == 0
    process = start("run", str(spec), "--out", "killed", *options, cwd=tmp_path)
    for kill in range(6):
        workers = wait_for_workers(process, tmp_path / "killed" / "log.jsonl", kill)
        time.sleep(chance.uniform(0.0, 0.4))
        os.kill(workers[kill % 2], signal.SIGKILL)
        process.communicate(timeout=120)
        if process.returncode == 0:
            break
        process = start("resume", "killed", cwd=tmp_path)
    process.communicate(timeout=300)
    assert process.returncode == 0 or resume(zygote, tmp_path / "killed").code == 0
    assert bits(zygote, tmp_path / "killed") == bits(zygote, tmp_path / "whole")


def wait_for_workers(process: subprocess.Popen[str], path: Path, kills: int) -> list[int]:
    """Return the training processes once they have started `kills + 1` times and taken an update."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        size = path.stat().st_size if path.exists() else 0
        listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
        found = [int(line) for line in listed.stdout.split()]
        time.sleep(0.2)
        if len(found) == 2 and path.exists() and path.stat().st_size > size > 0:
            return found
    raise TimeoutError(f"no update after {kills} kills")


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
