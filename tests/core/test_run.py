"""What the driver sees to between loading and training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import datasets
import pytest
from accelerate import Accelerator
from huggingface_hub import constants
from runs import write_regression

from taskrecipe.core.checkpoints.draft import Draft
from taskrecipe.core.checkpoints.manifest import Manifest
from taskrecipe.core.data.load import load
from taskrecipe.core.errors import NonFiniteError, UsageError
from taskrecipe.core.recipe import Recipe
from taskrecipe.core.run import Run, prepare
from taskrecipe.core.runfolder import RunFolder
from taskrecipe.core.spec.resolve import resolve

ROOT = Path(__file__).parents[2]


def test_once_all_is_loaded_no_library_asks_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    prepare(resolve(ROOT / "specs" / "mrpc.toml", sample=True), Accelerator(cpu=True), tmp_path)
    assert constants.HF_HUB_OFFLINE
    assert datasets.config.HF_HUB_OFFLINE


def test_a_recipe_without_a_sample_says_so(tmp_path: Path) -> None:
    class Bare(Recipe):
        """Nothing but what it must have."""

    spec = resolve(ROOT / "specs" / "mrpc.toml", sample=True).spec
    with pytest.raises(UsageError, match="recipe 'glue' has no sample data: name data and a model"):
        load(spec, Bare(spec), tmp_path)


def test_a_run_that_fails_leaves_no_checkpoint_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that takes its time: the error is raised once what was begun before it is committed."""

    def slowly(self: Draft, *arguments: Any) -> Manifest:
        time.sleep(0.5)
        return sealed(self, *arguments)

    sealed = Draft.seal
    monkeypatch.setattr(Draft, "seal", slowly)
    changes = ["train.learning_rate=1e9", "train.clip_norm=0", "optimizer.name='sgd'"]
    resolved = resolve(write_regression(tmp_path, "1.5"), changes)
    folder = RunFolder.create("run", tmp_path / "run")
    with folder, pytest.raises(NonFiniteError) as failed:
        Run(resolved, folder, Accelerator(cpu=True)).train()
    step = folder.read_json("results.json")["updates"]
    assert f"update {step + 1}:" in str(failed.value)
    assert {path.name for path in folder.checkpoints.glob("[!.]*")} >= {f"step-{step}", "last"}
    assert not list(folder.checkpoints.glob(".tmp-*"))
