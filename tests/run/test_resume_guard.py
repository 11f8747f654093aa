from __future__ import annotations

import copy
from typing import Any

import pytest

from taskrecipe.errors import UsageError
from taskrecipe.plugins.kinds import Optimizer, Technique
from taskrecipe.plugins.optimizers import AdamW
from taskrecipe.plugins.registry import installed
from taskrecipe.run.resume_guard import (
    HARMLESS,
    IMPOSSIBLE,
    Difference,
    find_differences,
    match_by_name,
    require_same_run,
    state_keys,
)
from taskrecipe.spec.spec import Spec

LEARNED = "the model was trained for the saved list, which the training rows no longer give"

RUN: dict[str, Any] = {
    "spec": {
        "recipe": "glue",
        "seed": 42,
        "name": None,
        "task": {"name": "mrpc"},
        "model": {"name": "bert", "type": None, "config": {"hidden_size": 8}},
        "data": {"path": "glue", "files": {"train": "a.csv"}, "workers": 0, "streaming": False},
        "train": {"epochs": 3, "learning_rate": 1e-3, "accumulate": 1, "ema": None},
        "optimizer": {"name": "adamw", "weight_decay": 0.0, "amsgrad": False},
        "evaluate": {"best": "f1", "patience": None},
        "checkpoint": {"every": "epoch", "keep": 2},
        "log": {"every": 10},
        "track": None,
        "techniques": [{"name": "lora", "rank": 8, "dropout": 0.0}],
        "callbacks": [{"name": "time_limit", "hours": 1.0}],
    },
    "rows": {"train": "aaa", "validation": "bbb"},
    "learned": {"labels": ["no", "yes"], "mean": 0.5},
    "hub": {"data": "c1", "model": "c2"},
    "model_files": {"config.json": "d1", "processor/vocab.txt": "d2"},
    "plugins": {
        "recipes": {"glue": {"distribution": "taskrecipe", "version": "0.1.0"}},
        "callbacks": {"x:time_limit": {"distribution": "x", "version": "1", "code": "a" * 64}},
        "trackers": {"y": {"distribution": "y", "version": "1", "code": "b" * 64}},
    },
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
    assert find_differences(RUN, copy.deepcopy(RUN)) == []
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
        (
            {"callbacks": [{"name": "time_limit", "hours": 2.0}]},
            Difference("callbacks.time_limit.hours", 1.0, 2.0, "changes results"),
        ),
        (
            {"callbacks": [*RUN["spec"]["callbacks"], {"name": "x"}]},
            Difference("callbacks.x.name", None, "x", "changes results"),
        ),
        (
            {"techniques": [{"name": "lora", "rank": 8, "dropout": 0.1}]},
            Difference("techniques.lora.dropout", 0.0, 0.1, "changes results"),
        ),
        (
            {"techniques": [{"name": "lora", "rank": 16, "dropout": 0.0}]},
            Difference(
                "techniques.lora.rank", 8, 16, "impossible", "techniques.lora.rank shapes the technique's state"
            ),
        ),
        (
            {"techniques": []},
            Difference("techniques", ["lora"], [], "impossible", "other techniques have other weights and state"),
        ),
        (
            {"optimizer__amsgrad": True},
            Difference(
                "optimizer.amsgrad", False, True, "impossible", "optimizer.amsgrad shapes the optimizer's state"
            ),
        ),
        (
            {"run__learned__labels": ["yes", "no"]},
            Difference("learned.labels", ["no", "yes"], ["yes", "no"], "impossible", LEARNED),
        ),
        ({"run__learned__mean": 0.6}, Difference("learned.mean", 0.5, 0.6, "changes results")),
        ({"run__hub__model": "c3"}, Difference("hub.model", "c2", "c3", "changes results")),
        ({"run__hub__data": "c3"}, Difference("hub.data", "c1", "c3", "harmless")),
        ({"run__model_files__config.json": "d9"}, Difference("model_files.config.json", "d1", "d9", "changes results")),
        (
            {"run__plugins__callbacks__x:time_limit__code": "c" * 64},
            Difference(
                "plugins.callbacks.x:time_limit",
                "x 1 (code aaaaaaaaaaaa)",
                "x 1 (code cccccccccccc)",
                "changes results",
            ),
        ),
        (
            {"run__plugins__trackers__y__version": "2"},
            Difference("plugins.trackers.y", "y 1 (code bbbbbbbbbbbb)", "y 2 (code bbbbbbbbbbbb)", "harmless"),
        ),
        ({"unheard_of": 1}, Difference("unheard_of", None, 1, "changes results")),
        ({"run__rows__train": "ccc"}, Difference("rows.train", "aaa", "ccc", "changes results")),
        ({"data__streaming": True}, Difference("data.streaming", False, True, "changes results")),
        (
            {"recipe": "clm"},
            Difference(
                "recipe",
                "glue",
                "clm",
                "impossible",
                IMPOSSIBLE["recipe"],
            ),
        ),
        (
            {"model__config__hidden_size": 9},
            Difference("model.config.hidden_size", 8, 9, "impossible", IMPOSSIBLE["model.config"]),
        ),
        (
            {"optimizer__name": "lion"},
            Difference("optimizer.name", "adamw", "lion", "impossible", IMPOSSIBLE["optimizer.name"]),
        ),
        (
            {"train__ema": 0.9},
            Difference(
                "train.ema",
                None,
                0.9,
                "impossible",
                IMPOSSIBLE["train.ema"],
            ),
        ),
        (
            {"evaluate__best": "accuracy"},
            Difference("evaluate.best", "f1", "accuracy", "impossible", IMPOSSIBLE["evaluate.best"]),
        ),
    ],
    ids=lambda value: value.key if isinstance(value, Difference) else "",
)
def test_each_difference_has_its_kind(change: dict[str, Any], expected: Difference):
    found = find_differences(RUN, _changed(**change), ["optimizer.amsgrad", "techniques.lora.rank"])
    assert [one for one in found if one.key != "track"] == [expected]


def test_a_second_callback_of_a_name_is_another_callback():
    current = _changed(callbacks=[*RUN["spec"]["callbacks"], {"name": "time_limit", "hours": 2.0}])
    assert [str(one) for one in find_differences(RUN, current)] == [
        "callbacks.time_limit-2.name: nothing → 'time_limit'",
        "callbacks.time_limit-2.hours: nothing → 2.0",
    ]


def test_where_the_rows_lie_does_not_matter_if_they_are_the_same():
    moved = {"data__files__train": "/elsewhere/a.csv"}
    [same] = find_differences(RUN, _changed(**moved))
    assert same.kind == "harmless"
    kinds = {one.key: one.kind for one in find_differences(RUN, _changed(**moved, run__rows__train="ccc"))}
    assert kinds == {"data.files.train": "changes results", "rows.train": "changes results"}


def test_what_is_harmless_is_returned():
    assert [str(one) for one in require_same_run(RUN, _changed(log__every=5))] == ["log.every: 10 → 5"]


def test_everything_that_prevents_resuming_is_reported_at_once():
    current = _changed(seed=1, recipe="clm", log__every=5, train__ema=0.9)
    with pytest.raises(UsageError) as caught:
        require_same_run(RUN, current, allow=["train.epochs"])
    assert str(caught.value).splitlines() == [
        "the run can't be resumed; changed since the checkpoint:",
        "  --allow train.epochs: nothing of that name has changed",
        "  recipe: 'glue' → 'clm' is impossible: another recipe has other weights; start a new run",
        "  seed: 42 → 1 changes results; if you mean it: --allow seed",
        "  train.ema: nothing → 0.9 is impossible: the average so far was taken with the saved decay; start a new run",
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


def test_a_setting_that_shapes_the_state_is_named_as_such():
    with pytest.raises(UsageError, match=r"optimizer\.amsgrad shapes the optimizer's state; start a new run"):
        require_same_run(RUN, _changed(optimizer__amsgrad=True), ["optimizer.amsgrad"], ["optimizer.amsgrad"])


def test_a_plugin_that_was_added_or_removed_is_reported_by_its_key_alone():
    current = _changed(
        optimizer__name="lion", run__plugins__optimizers={"lion": {"distribution": "z", "version": "1", "code": "1"}}
    )
    assert [one.key for one in find_differences(RUN, current)] == ["optimizer.name"]


def test_callbacks_keep_their_state_by_name():
    assert match_by_name(["a", "b", "a"], ["a", "a", "c", "b", "a"]) == [0, 2, None, 1, None]
    assert match_by_name([], ["a"]) == [None]


def test_keys_that_shape_the_state_come_from_the_optimizer_and_the_techniques():
    class Lora(Technique):
        shapes_state = ("rank",)

    techniques = [Lora(name="lora"), Technique(name="other"), Lora(name="lora")]
    spec = Spec.model_construct(optimizer=AdamW(), techniques=techniques)
    assert state_keys(spec) == ["optimizer.amsgrad", "techniques.lora.rank", "techniques.lora-2.rank"]


@pytest.mark.parametrize("optimizer", [p.load() for p in installed().plugins if p.group == "optimizers"])
def test_keys_that_shape_the_state_are_keys_of_the_optimizer(optimizer: type[Optimizer]):
    assert set(optimizer.shapes_state) <= set(optimizer.model_fields)


@pytest.mark.parametrize("key", [key for key in (*HARMLESS, *IMPOSSIBLE) if key.partition(".")[0] != "plugins"])
def test_every_listed_key_is_one_of_the_spec(key: str):
    table: Any = Spec
    for name in key.split("."):
        assert name == "processes" or name in table.model_fields, key
        table = table.model_fields[name].annotation if name != "processes" else None
