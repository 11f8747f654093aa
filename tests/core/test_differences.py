from __future__ import annotations

import copy
from typing import Any

import pytest

from taskrecipe.core.differences import HARMLESS, IMPOSSIBLE, Difference, differences, require_same_run
from taskrecipe.core.errors import UsageError
from taskrecipe.core.spec.spec import Spec

RUN: dict[str, Any] = {
    "spec": {
        "recipe": "glue",
        "seed": 42,
        "name": None,
        "task": {"name": "mrpc"},
        "model": {"name": "bert", "type": None, "config": {"hidden_size": 8}},
        "data": {"path": "glue", "files": {"train": "a.csv"}, "workers": 0, "streaming": False},
        "train": {"epochs": 3, "learning_rate": 1e-3, "accumulate": 1, "ema": None},
        "optimizer": {"name": "adamw", "weight_decay": 0.0},
        "evaluate": {"best": "f1", "patience": None},
        "checkpoint": {"every": "epoch", "keep": 2},
        "log": {"every": 10},
        "track": None,
        "callbacks": [],
    },
    "data": {"train": "aaa", "validation": "bbb"},
    "processes": 1,
    "versions": {"torch": "2.13.0", "numpy": "2.4.6"},
}


def _changed(**values: Any) -> dict[str, Any]:
    """The run with values put in place, by their keys with __ for dots; those of `spec` without it."""
    run = copy.deepcopy(RUN)
    for key, value in values.items():
        *path, last = key.split("__")
        table = run["spec"] if path[:1] != ["run"] else run
        for name in path[path[:1] == ["run"] :]:
            table = table[name]
        table[last] = value
    return run


def test_the_same_run_has_no_differences():
    assert differences(RUN, copy.deepcopy(RUN)) == []
    assert require_same_run(RUN, copy.deepcopy(RUN)) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"log__every": 5}, Difference("log.every", 10, 5, "harmless")),
        ({"checkpoint__keep": 3}, Difference("checkpoint.keep", 2, 3, "harmless")),
        ({"track": {"name": "wandb"}}, Difference("track.name", None, "wandb", "harmless")),
        ({"data__workers": 2}, Difference("data.workers", 0, 2, "harmless")),
        ({"name": "other"}, Difference("name", None, "other", "harmless")),
        ({"train__accumulate": 4}, Difference("train.accumulate", 1, 4, "harmless")),
        ({"run__processes": 2}, Difference("processes", 1, 2, "harmless")),
        ({"run__versions__torch": "2.13.1"}, Difference("versions.torch", "2.13.0", "2.13.1", "harmless")),
        ({"run__versions__torch": "2.14.0"}, Difference("versions.torch", "2.13.0", "2.14.0", "changes results")),
        ({"run__versions__x": "1.0"}, Difference("versions.x", None, "1.0", "changes results")),
        ({"seed": 43}, Difference("seed", 42, 43, "changes results")),
        ({"train__epochs": 4}, Difference("train.epochs", 3, 4, "changes results")),
        ({"train__learning_rate": 1e-4}, Difference("train.learning_rate", 1e-3, 1e-4, "changes results")),
        ({"optimizer__weight_decay": 0.1}, Difference("optimizer.weight_decay", 0.0, 0.1, "changes results")),
        ({"task__name": "cola"}, Difference("task.name", "mrpc", "cola", "changes results")),
        ({"model__name": "other"}, Difference("model.name", "bert", "other", "changes results")),
        ({"callbacks": [{"name": "x"}]}, Difference("callbacks", [], [{"name": "x"}], "changes results")),
        ({"unheard_of": 1}, Difference("unheard_of", None, 1, "changes results")),
        ({"run__data__train": "ccc"}, Difference("rows.train", "aaa", "ccc", "changes results")),
        ({"data__streaming": True}, Difference("data.streaming", False, True, "changes results")),
        ({"recipe": "clm"}, Difference("recipe", "glue", "clm", "impossible")),
        ({"model__config__hidden_size": 9}, Difference("model.config.hidden_size", 8, 9, "impossible")),
        ({"optimizer__name": "lion"}, Difference("optimizer.name", "adamw", "lion", "impossible")),
        ({"train__ema": 0.9}, Difference("train.ema", None, 0.9, "impossible")),
        ({"evaluate__best": "accuracy"}, Difference("evaluate.best", "f1", "accuracy", "impossible")),
    ],
    ids=lambda value: value.key if isinstance(value, Difference) else "",
)
def test_each_difference_has_its_kind(change: dict[str, Any], expected: Difference):
    assert [one for one in differences(RUN, _changed(**change)) if one.key != "track"] == [expected]


def test_where_the_rows_lie_does_not_matter_if_they_are_the_same():
    moved = {"data__files__train": "/elsewhere/a.csv"}
    [same] = differences(RUN, _changed(**moved))
    assert same.kind == "harmless"
    kinds = {one.key: one.kind for one in differences(RUN, _changed(**moved, run__data__train="ccc"))}
    assert kinds == {"data.files.train": "changes results", "rows.train": "changes results"}


def test_what_is_harmless_is_returned_to_be_told():
    assert [str(one) for one in require_same_run(RUN, _changed(log__every=5))] == ["log.every: 10 → 5"]


def test_everything_that_stands_in_the_way_is_told_at_once():
    current = _changed(seed=1, recipe="clm", log__every=5, train__ema=0.9)
    with pytest.raises(UsageError) as caught:
        require_same_run(RUN, current, allow=["train.epochs"])
    assert str(caught.value).splitlines()[1:] == [
        "  --allow train.epochs: nothing of that name has changed",
        "  recipe: 'glue' → 'clm' can't be: another task has other weights; start a new run",
        "  seed: 42 → 1 changes results; if that is meant: --allow seed",
        "  train.ema: nothing → 0.9 can't be: the average so far was taken with the saved decay; start a new run",
    ]


@pytest.mark.parametrize("allow", [["train.epochs", "train.learning_rate"], ["train"]])
def test_what_is_meant_is_allowed_by_key_or_by_table(allow: list[str]):
    current = _changed(train__epochs=4, train__learning_rate=1.0)
    assert len(require_same_run(RUN, current, allow)) == 2


def test_allowing_does_not_make_the_impossible_possible():
    with pytest.raises(UsageError, match=r"recipe: .* start a new run"):
        require_same_run(RUN, _changed(recipe="clm"), allow=["recipe"])


def test_a_key_is_not_taken_for_another_that_it_begins_with():
    with pytest.raises(UsageError, match=r"--allow train\.epochs"):
        require_same_run(RUN, _changed(train__epochs=4), allow=["train.epoch"])


@pytest.mark.parametrize("key", [*HARMLESS, *IMPOSSIBLE])
def test_every_listed_key_is_one_of_the_spec(key: str):
    table: Any = Spec
    for name in key.split("."):
        assert name == "processes" or name in table.model_fields, key
        table = table.model_fields[name].annotation if name != "processes" else None
