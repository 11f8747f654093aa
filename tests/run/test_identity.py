"""The identity of a run changes with everything that its results are a function of, and with nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskrecipe.data import code_digest
from taskrecipe.data.load import Loaded
from taskrecipe.model import ModelSource
from taskrecipe.plugins.registry import Plugin, Registry, installed
from taskrecipe.recipe import Recipe
from taskrecipe.run import identity
from taskrecipe.run.identity import describe_plugins, hub_commit, run_identity
from taskrecipe.run.resume_guard import find_differences
from taskrecipe.spec.spec import Spec

SPEC = {
    "spec_version": 1,
    "recipe": "glue",
    "task": {"name": "mrpc"},
    "train": {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3},
}


class Labeled(Recipe):
    """A recipe with labels."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKRECIPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in {"config.json": "{}", "vocab.txt": "a", "model.safetensors": "w", "README.md": "r"}.items():
        (folder / name).write_text(content)
    return folder


def _spec(**values: Any) -> Spec:
    return Spec.model_validate({**SPEC, **values})


def _identity(folder: Path, spec: Spec | None = None, labels: tuple[str, ...] = ("a", "b"), **options: Any) -> Any:
    spec = spec or _spec()
    recipe = Labeled(spec)
    recipe.labels = list(labels)
    loaded = Loaded({}, ModelSource(str(folder)), "hub", {"train": "aaa"}, commit="c1")
    return run_identity(spec, loaded, recipe, options.pop("processes", 1), **options)


def test_it_holds_json_values_and_no_path_of_the_machine(model: Path, tmp_path: Path):
    found = _identity(model)
    assert json.loads(json.dumps(found)) == found
    assert found["rows"] == {"train": "aaa"}
    assert found["learned"] == {"labels": ["a", "b"]}
    assert found["processes"] == 1
    assert found["spec"]["recipe"] == "glue"
    assert found["versions"]["torch"]
    assert found["plugins"]["recipes"]["glue"]["distribution"] == "taskrecipe"
    assert found["hub"] == {"data": "c1", "model": None}
    assert set(found["model_files"]) == {"config.json", "vocab.txt"}
    assert str(tmp_path) not in json.dumps(found)


def test_the_same_run_elsewhere_has_the_same_identity(model: Path, tmp_path: Path):
    shutil.copytree(model, tmp_path / "moved")
    assert find_differences(_identity(model), _identity(tmp_path / "moved")) == []


@pytest.mark.parametrize(
    ("name", "changes"), [("config.json", True), ("vocab.txt", True), ("model.safetensors", False)]
)
def test_files_count_that_are_not_in_checkpoints(model: Path, name: str, changes: bool):
    before = _identity(model)
    (model / name).write_text("changed")
    keys = [one.key for one in find_differences(before, _identity(model))]
    assert keys == ([f"model_files.{name}"] if changes else [])


def test_another_models_weights_count(model: Path, tmp_path: Path):
    teacher = tmp_path / "teacher"
    shutil.copytree(model, teacher)
    before = _identity(model, other_models=[ModelSource(str(teacher))])
    (teacher / "model.safetensors").write_text("changed")
    after = _identity(model, other_models=[ModelSource(str(teacher))])
    assert [one.key for one in find_differences(before, after)] == ["model_files.teacher/model.safetensors"]


def test_a_processors_files_count(model: Path, tmp_path: Path):
    folder = tmp_path / "processor"
    folder.mkdir()
    (folder / "vocab.txt").write_text("b")
    recipe = Labeled(_spec())
    loaded = Loaded({}, ModelSource(str(model), processor=str(folder)), "files")
    files = run_identity(_spec(), loaded, recipe, 1)["model_files"]
    assert set(files) == {"config.json", "vocab.txt", "processor/vocab.txt"}


def test_labels_processes_and_spec_count(model: Path):
    before = _identity(model)
    after = _identity(model, _spec(seed=7), labels=("b", "a"), processes=2)
    assert {one.key for one in find_differences(before, after)} == {"seed", "learned.labels", "processes"}


def test_a_model_without_a_folder_has_no_files():
    loaded = Loaded({}, ModelSource(None, "bert"), "files")
    found = run_identity(_spec(), loaded, Labeled(_spec()), 1)
    assert found["model_files"] == {}
    assert found["hub"]["model"] is None


def test_the_commit_of_a_hub_model_is_its_snapshots_name(tmp_path: Path):
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    assert hub_commit(ModelSource(str(snapshot))) == "0123abcd"


def test_the_plugins_in_use_are_named():
    used = describe_plugins(_spec(callbacks=[{"name": "time_limit", "minutes": 1}], optimizer={"name": "sgd"}))
    assert {group: list(named) for group, named in used.items()} == {
        "recipes": ["glue"],
        "optimizers": ["sgd"],
        "schedules": ["linear"],
        "callbacks": ["time_limit"],
    }
    assert set(used["optimizers"]["sgd"]) == {"distribution", "version"}


def test_a_strangers_plugin_counts_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its version stays the same while it is being written."""
    file = tmp_path / "stranger.py"
    module = ModuleType("stranger")
    module.__file__, module.__package__ = str(file), ""
    monkeypatch.setitem(sys.modules, "stranger", module)
    spec = _spec(optimizer={"name": "sgd"})
    sgd = installed().find("optimizers", "sgd")

    class Stranger(sgd.load()):  # type: ignore[misc]
        """An optimizer of another distribution."""

    Stranger.__module__ = "stranger"
    monkeypatch.setattr(Plugin, "load", lambda plugin: Stranger)
    theirs = Plugin("optimizers", "sgd", "stranger", "1.0", "stranger:Stranger")
    others = [plugin for plugin in installed().plugins if plugin is not sgd]
    registry = Registry([*others, theirs])
    monkeypatch.setattr(identity, "installed", lambda: registry)

    def described(text: str) -> dict[str, str]:
        file.write_text(text)
        code_digest.digest_code.cache_clear()
        return describe_plugins(spec)["optimizers"]["sgd"]

    one, same, other = described("a = 1"), described("a = 1"), described("a = 2")
    assert (one["distribution"], one["version"]) == ("stranger", "1.0")
    assert one == same
    assert one["code"] != other["code"]
