"""A run between loading its data and its end: what it needs from the network, what it leaves, who may fail."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest
from accelerate import Accelerator
from huggingface_hub import constants
from tests.support.failing_callbacks import PLACES
from tests.support.runs import GLUE, log, results, steps, write_regression, write_spec

from taskrecipe import (
    DataError,
    NonFiniteError,
    PluginError,
    Recipe,
    RecipeError,
    UsageError,
    installed,
    resume,
    train,
    train_events,
)
from taskrecipe.checkpoints.draft import Draft
from taskrecipe.checkpoints.manifest import Manifest
from taskrecipe.data.load import load_data
from taskrecipe.plugins.registry import Plugin
from taskrecipe.run.prepare import prepare_run
from taskrecipe.spec.resolve import resolve
from taskrecipe.training.events import About, Event, Opened, Updated

ROOT = Path(__file__).parents[2]


def test_once_all_is_loaded_no_library_asks_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    prepare_run(resolve(ROOT / "specs" / "mrpc.toml", sample=True).spec, Accelerator(cpu=True), tmp_path / "sample")
    assert constants.HF_HUB_OFFLINE
    assert datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize("until", [About, Opened, Updated])
@pytest.mark.parametrize("ended", ["closed", "finished"])
def test_what_a_host_changes_between_events_stays(
    ended: str, until: type[Event], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_BEFORE", "a")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    events = train_events(write_regression(tmp_path, "1.5"), out=tmp_path / "run")
    next(event for event in events if isinstance(event, until))
    monkeypatch.setenv("HOST_BEFORE", "b")
    monkeypatch.setenv("HOST_DURING", "c")
    events.close() if ended == "closed" else list(events)
    assert [os.environ[name] for name in ("HOST_BEFORE", "HOST_DURING", "HF_HUB_OFFLINE")] == ["b", "c", "0"]


def test_a_recipe_without_a_sample_says_so(tmp_path: Path) -> None:
    class Bare(Recipe):
        """Nothing but what it must have."""

    spec = resolve(ROOT / "specs" / "mrpc.toml", sample=True).spec
    with pytest.raises(UsageError, match="recipe 'glue' has no sample data: name data and a model"):
        load_data(spec, Bare(spec), tmp_path / "sample")


def test_a_run_that_fails_leaves_no_checkpoint_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk: the error is raised after the commit that had begun before it."""

    def seal_slowly(self: Draft, *arguments: Any) -> Manifest:
        time.sleep(0.5)
        return seal(self, *arguments)

    seal = Draft.seal
    monkeypatch.setattr(Draft, "seal", seal_slowly)
    changes = {"train.learning_rate": 1e9, "train.clip_norm": 0, "optimizer.name": "sgd"}
    folder = tmp_path / "run"
    with pytest.raises(NonFiniteError) as failed:
        train(write_regression(tmp_path, "1.5"), set=changes, out=folder, quiet=True)
    step = results(folder)["updates"]
    assert f"update {step + 1}:" in str(failed.value)
    assert {path.name for path in (folder / "checkpoints").glob("[!.]*")} >= {f"step-{step}", "last"}
    assert not list((folder / "checkpoints").glob(".tmp-*"))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the callback `failing`."""
    plugin = Plugin("callbacks", "failing", "tests", "1", "tests.support.failing_callbacks:Failing")
    monkeypatch.setattr(installed(), "plugins", [*installed().plugins, plugin])
    monkeypatch.delitem(vars(installed()), "_by_name", raising=False)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("failing")
def test_a_callback_that_fails_stops_the_run_after_a_checkpoint(place: str, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, GLUE + f'[[callbacks]]\nname = "failing"\nplace = "{place}"\n')
    folder = tmp_path / "run"
    with pytest.raises(PluginError, match=f"callback 'failing' failed: ValueError: at {place}") as failed:
        train(spec, out=folder, quiet=True)
    assert failed.value.exit_code == 5
    assert results(folder)["status"] == "failed"
    assert "callback 'failing' failed" in results(folder)["error"]
    ends = [line["status"] for line in log(folder, "end")]
    assert ends == (["finished", "failed"] if place == "close" else ["failed"])
    step = results(folder)["updates"]
    assert step == {"start": 0, "update": 2, "evaluate": 3, "save": step, "close": 9}[place]
    assert step in steps(folder) or step == 0


@pytest.mark.usefixtures("failing")
def test_once_the_callback_is_gone_the_run_goes_on(tmp_path: Path) -> None:
    whole = train(write_spec(tmp_path), out=tmp_path / "whole", quiet=True)
    spec = write_spec(tmp_path, GLUE + '[[callbacks]]\nname = "failing"\nplace = "update"\n')
    with pytest.raises(PluginError):
        train(spec, out=tmp_path / "run", quiet=True)
    again = resume(tmp_path / "run", set={"callbacks": []}, allow=["callbacks"], quiet=True)
    assert again.results["final"] == whole.results["final"]
    losses = [[line["loss"] for line in log(run.folder, "update")] for run in (whole, again)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"data.files.train": "none.csv"}, "there is no file"),
        ({"data.columns": {"label": "none"}}, "none"),
        ({"optimizer.name": "sgd", "model.name": "none"}, "none"),
    ],
)
def test_a_run_that_fails_before_its_first_update_leaves_no_folder(
    change: Mapping[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=problem):
        train(write_spec(tmp_path), set=change, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_bad_label_leaves_no_folder_and_is_named(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    text = (tmp_path / "validation.csv").read_text().rstrip("\n")
    (tmp_path / "validation.csv").write_text(text[:-1] + "7\n")
    with pytest.raises(DataError, match=r"validation.csv' record 21 \(line 22\), column 'label': 7 is not the number"):
        train(spec, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_training_works_in_a_thread_and_handles_no_signals_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a handler was installed")

    monkeypatch.setattr(signal, "signal", refuse)
    spec, found = write_spec(tmp_path), []

    def work(target: Callable[[Any], None]) -> None:
        target(train(spec, out=tmp_path / "run", quiet=True))

    thread = threading.Thread(target=work, args=(found.append,))
    thread.start()
    thread.join(120)
    assert found[0].results["status"] == "finished"


@pytest.mark.parametrize("newest", [8, 9])
def test_a_damaged_best_checkpoint_is_reported_and_training_goes_on(newest: int, tmp_path: Path) -> None:
    """Whether updates are left to take or not, the last evaluated weights are now the best."""
    spec = write_spec(tmp_path, GLUE.replace("keep = 2", "keep = 100"))
    run = train(spec, out=tmp_path / "run", set={"train.learning_rate": 0.02}, quiet=True)
    best = run.results["best"]["step"]
    assert best < 9, "the test needs a best checkpoint before the last one"
    if newest == 8:
        (run.folder / "checkpoints" / "step-9").rename(tmp_path / "step-9")
    weights = run.folder / "checkpoints" / f"step-{best}" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    again = resume(run.folder, quiet=True)
    warnings = [line["message"] for line in log(run.folder, "warning")]
    assert any(f"the best checkpoint, step-{best}, is lost" in message for message in warnings)
    assert again.results["status"] == "finished"
    assert again.results["best"]["step"] == 9
    assert again.results["best"]["metrics"] == again.results["final"]


def test_pointers_that_a_killed_commit_left_behind_are_moved(tmp_path: Path) -> None:
    """Also if no update is left to take, so that nothing is saved again."""
    run = train(write_spec(tmp_path), out=tmp_path / "run", quiet=True)
    checkpoints, best = run.folder / "checkpoints", run.results["best"]["step"]
    for pointer in ("last", "best"):
        (checkpoints / pointer).write_text("step-8\n")
    resume(run.folder, quiet=True)
    assert (checkpoints / "last").read_text() == "step-9\n"
    assert (checkpoints / "best").read_text() == f"step-{best}\n"
    assert best != 8


def test_no_path_of_the_machine_is_in_spec_results_or_card_and_a_copied_run_goes_on(tmp_path: Path) -> None:
    run = train(write_spec(tmp_path), set={"train.updates": 3}, out=tmp_path / "run", quiet=True)
    for name in ("spec.toml", "results.json", "model/spec.toml", "model/README.md"):
        assert str(tmp_path) not in (run.folder / name).read_text(), name
    copy = tmp_path / "elsewhere" / "copy"
    shutil.copytree(run.folder, copy)
    resumed = resume(copy, set={"train.updates": 6}, allow=["train.updates"], quiet=True)
    assert resumed.results["updates"] == 6
    assert str(tmp_path) not in (copy / "spec.toml").read_text()


def test_a_project_that_was_moved_goes_on(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    train(write_spec(tmp_path / "here"), set={"train.updates": 3}, out=tmp_path / "here" / "run", quiet=True)
    (tmp_path / "here").rename(tmp_path / "there")
    folder = tmp_path / "there" / "run"
    resumed = resume(folder, set={"train.updates": 6}, allow=["train.updates"], quiet=True)
    assert resumed.results["updates"] == 6
