"""`recipe diff`: keys that differ between specs, files or those of runs, with where each value came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.evidence import SPEC, write_run

from taskrecipe import UsageError, diff_specs

BASE = """\
spec_version = 1
recipe = "glue"
[task]
name = "mrpc"
[model]
name = "google-bert/bert-base-cased"
[data]
path = "nyu-mll/glue"
[train]
epochs = 3
learning_rate = 5e-5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("base.toml").write_text(BASE)
    return tmp_path


def test_values_are_resolved_and_each_says_where_it_came_from(folder: Path) -> None:
    Path("child.toml").write_text(
        'extends = "base.toml"\nseed = 7\n[train]\nepochs = 4\nbatch_size = 32\n[log]\nevery = 5\n'
    )
    found = {one.key: one for one in diff_specs("base.toml", "child.toml")}
    assert list(found) == ["seed", "train.epochs", "log.every"]  # a batch of 32 is the default
    assert (found["train.epochs"].values, found["train.epochs"].origins) == ((3, 4), ("base.toml:10", "child.toml:4"))
    assert (found["seed"].values, found["seed"].origins) == ((42, 7), ("default", "child.toml:2"))
    assert [one.key for one in found.values() if not one.affects_results] == ["log.every"]


def test_a_run_says_where_its_values_came_from_when_it_started(folder: Path) -> None:
    run = write_run(Path("runs/run"), SPEC.replace("5e-05 # ../spec.toml:9", "0.1 # --set"))
    found = {one.key: one for one in diff_specs("base.toml", run)}
    assert found["train.learning_rate"].values == (5e-5, 0.1)
    assert found["train.learning_rate"].origins == ("base.toml:11", "--set")
    assert found["data.files.train"].origins == (None, "runs/spec.toml:6")


def test_the_spec_of_a_run_whose_recipe_is_not_installed_is_compared_as_it_is(folder: Path) -> None:
    specs = [SPEC.replace('"glue"', '"unheard_of"'), SPEC.replace('"glue"', '"unheard_of"').replace("5e-05", "1e-05")]
    runs = [write_run(Path(f"run{number}"), spec) for number, spec in enumerate(specs)]
    [one] = diff_specs(*runs)
    assert (one.key, one.values, one.origins) == ("train.learning_rate", (5e-5, 1e-5), ("spec.toml:9", "spec.toml:9"))


def test_entries_of_lists_are_compared_by_their_names(folder: Path) -> None:
    for name, minutes in (("one", 5), ("two", 6)):
        Path(f"{name}.toml").write_text(f'{BASE}[[callbacks]]\nname = "time_limit"\nminutes = {minutes}\n')
    [one] = diff_specs("one.toml", "two.toml")
    assert (one.key, one.values, one.origins) == (
        "callbacks.time_limit.minutes",
        (5, 6),
        ("one.toml:14", "two.toml:14"),
    )
    keys = [one.key for one in diff_specs("base.toml", "one.toml")]
    assert keys[0] == "callbacks"
    assert "callbacks.time_limit.minutes" in keys


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed=st.dictionaries(st.sampled_from(["epochs", "batch_size", "updates"]), st.integers(100, 200), max_size=3))
def test_exactly_the_changed_keys_differ_and_turning_the_specs_turns_the_values(folder: Path, changed: dict) -> None:
    values = {"epochs": 3, "learning_rate": 5e-5, **changed}
    text = BASE[: BASE.index("[train]")] + "[train]\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
    Path("other.toml").write_text(text)
    there, back = diff_specs("base.toml", "other.toml"), diff_specs("other.toml", "base.toml")
    assert {one.key for one in there} == {f"train.{key}" for key in changed}
    assert {one.key: one.values for one in there} == {one.key: one.values[::-1] for one in back}
    assert diff_specs("other.toml", "other.toml") == []


# The command ----------------------------------------------------------------------------------------


def test_exit_codes_are_those_of_diff(folder: Path, recipe: Any) -> None:
    Path("other.toml").write_text(BASE.replace("epochs = 3", "epochs = 4"))
    Path("wrong.toml").write_text(BASE.replace("epochs", "epoch"))
    same = recipe("diff", "base.toml", "base.toml")
    assert (same.code, same.out) == (0, "base.toml and base.toml resolve to the same values\n")
    other = recipe("diff", "base.toml", "other.toml")
    assert other.code == 1
    assert other.out.splitlines() == [
        "Differences",
        "  KEY           base.toml          other.toml",
        "  train.epochs  3  (base.toml:10)  4  (other.toml:10)",
    ]
    wrong = recipe("diff", "base.toml", "wrong.toml")
    assert (wrong.code, wrong.out) == (2, "")
    assert "wrong.toml:10:1: error[unknown-key]" in wrong.err
    assert recipe("diff", "base.toml", "missing.toml").code == 2


def test_json_has_every_difference(folder: Path, recipe: Any) -> None:
    Path("other.toml").write_text(BASE.replace("epochs = 3", "epochs = 4"))
    assert json.loads(recipe("diff", "base.toml", "other.toml", "--json").out) == {
        "specs": ["base.toml", "other.toml"],
        "equal": False,
        "differences": [
            {
                "key": "train.epochs",
                "values": [3, 4],
                "origins": ["base.toml:10", "other.toml:10"],
                "affects_results": True,
            }
        ],
    }


def test_a_folder_without_a_spec_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="neither a spec nor the folder of a run"):
        diff_specs("base.toml", "empty")
