"""Two processes train all of contrib as one does: by command, on the rows of a sample, without dropout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from tests.support.commands import Zygote
from tests.support.runs import log, train
from tests.support.techniqueruns import technique_spec

from taskrecipe.model import ModelSource
from taskrecipe.optional import HasParts
from taskrecipe.plugins.registry import installed
from taskrecipe.recipe import Recipe, Splits

RECIPE = Path(sys.executable).with_name("recipe")

MRPC = {"recipe": "glue", "task": {"name": "mrpc"}}
WORDS = {"recipe": "token_classification", "task": {"max_length": 64}}
TASKS: dict[str, dict[str, Any]] = {
    "token_classification": {},
    "multitask": {"sampling": "weights", "tasks": {"a": {**MRPC, "weight": 1.0}, "b": {**WORDS, "weight": 2.0}}},
    "question_answering": {"no_answer": True},
    "seq2seq": {},
    "two_tower": {},
}
TECHNIQUES: dict[str, dict[str, Any]] = {
    "distillation": {"teacher": "model/teacher"},
    "adversarial": {"method": "pgd", "steps": 2, "epsilon": 0.02, "step_size": 0.015},
    "freeze": {"layers": 1, "until": 3},
    "layerwise_lr": {"decay": 0.8},
}
QUICK = ("multitask",)


def write_rows(splits: Splits, folder: Path) -> dict[str, str]:
    """Files of a few rows each, an odd number, so that the shares of two processes differ."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        rows.select(range(53 if split == "train" else 21)).to_parquet(folder / f"{split}.parquet")
    return {split: str(folder / f"{split}.parquet") for split in splits}


def without_dropout(model: Path) -> None:
    path = model / "config.json"
    config = json.loads(path.read_text())
    rates = {key: 0.0 for key, value in config.items() if "drop" in key and isinstance(value, float)}
    path.write_text(json.dumps(config | rates))


def with_rows(recipe: Recipe, task: dict[str, Any], splits: Splits, folder: Path) -> dict[str, Any]:
    """The tables that say what to read: for a recipe of several parts, within each part's own."""
    if not isinstance(recipe, HasParts):
        return {"task": task, "data": {"files": write_rows(splits, folder / "rows")}}
    tasks = {
        name: {**task["tasks"][name], "data": {"files": write_rows(part.sample(folder / name), folder / name)}}
        for name, part in recipe.parts().items()
    }
    return {"task": {**task, "tasks": tasks}}


def prepare_techniques(recipe: Recipe, splits: Splits, folder: Path) -> None:
    """Write what techniques need besides the sample: a teacher."""
    recipe.learn(splits["train"])
    recipe.processor = recipe.load_processor(ModelSource(str(folder)))
    for technique in recipe.spec.techniques:
        technique.prepare_sample(recipe, recipe.preprocess(splits["train"], "train"), folder)


def write_spec(name: str, folder: Path) -> Path:
    """A spec of six updates on files; 53 rows in updates of 16 make every fourth a short one."""
    techniques = [{"name": name, **TECHNIQUES[name]}] if name in TECHNIQUES else []
    spec = technique_spec(*techniques, recipe="glue" if techniques else name, task=TASKS.get(name))
    recipe = installed().recipe(spec.recipe)(spec)
    splits = recipe.sample(folder / "model")
    without_dropout(folder / "model")
    if techniques:
        prepare_techniques(recipe, splits, folder / "model")
    values = {
        "spec_version": 1,
        "recipe": spec.recipe,
        "model": {"name": "model"},
        "train": {"updates": 6, "batch_size": 16, "accumulate": 2, "learning_rate": 1e-3},
        "techniques": techniques,
        "evaluate": {"every": 3},
        "log": {"every": 1},
        **with_rows(recipe, spec.task.model_dump(mode="json", exclude_unset=True), splits, folder),
    }
    path = folder / "spec.toml"
    path.write_text(tomlkit.dumps(values))
    return path


def run_two(spec: Path) -> Path:
    folder = spec.parent / "two"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [str(RECIPE), "run", str(spec), "--out", str(folder), "--processes", "2"]
    done = subprocess.run(command, cwd=spec.parent, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.chaos]) for name in [*TASKS, *TECHNIQUES]]
)
def test_two_processes_train_as_one_does(name: str, zygote: Zygote, tmp_path: Path) -> None:
    spec = write_spec(name, tmp_path)
    one, two = train(zygote, spec, "one"), run_two(spec)
    for key in ("loss", "grad_norm"):
        ours, theirs = ([line[key] for line in log(folder, "update")] for folder in (one, two))
        assert len(ours) == 6
        assert ours == pytest.approx(theirs, rel=1e-4)
    measured = [[line["metrics"] for line in log(folder, "evaluate")] for folder in (one, two)]
    assert len(measured[0]) == 2
    for ours, theirs in zip(*measured, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
