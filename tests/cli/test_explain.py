"""`recipe explain`: value, origin, meaning and range of a key."""

from __future__ import annotations

import json

import pytest

from taskrecipe.spec.spec import Checkpoint, Train

PARENT = """
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
CHILD = """
extends = "parent.toml"
[train]
epochs = 4
[data.limit]
train = 10
[[callbacks]]
name = "time_limit"
minutes = 5
"""


@pytest.fixture
def explain(recipe, tmp_path, monkeypatch):
    (tmp_path / "parent.toml").write_text(PARENT)
    (tmp_path / "child.toml").write_text(CHILD)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: recipe("explain", "child.toml", *arguments)


@pytest.mark.parametrize(
    ("arguments", "value", "origin"),
    [
        (["train.epochs"], "= 4", "child.toml:4"),
        (["train.learning_rate"], "= 5e-05", "parent.toml:12 (extended)"),
        (["train.epochs", "--set", "train.epochs=9"], "= 9", "--set"),
        (["train.epochs", "--sample"], "= 4", "sample"),
        (["train.clip_norm"], "= 1.0", "default"),
        (["train.ema"], "is not given", "default"),
        (["data.limit.train"], "= 10", "child.toml:6"),
        (["callbacks[0].minutes"], "= 5.0", "child.toml:9"),
        (["callbacks.0.minutes"], "= 5.0", "child.toml:9"),
        (["recipe"], '= "glue"', "parent.toml:3 (extended)"),
    ],
)
def test_the_value_and_where_it_came_from(explain, arguments, value, origin):
    head, *facts = explain(*arguments).out.splitlines()
    assert head.endswith(value)
    assert f"  from     {origin}" in facts


def test_meaning_range_and_default(explain):
    explained = explain("optimizer.weight_decay").out
    assert "meaning  Weight decay for each update" in explained
    assert "allowed  number >= 0, <= 10" in explained
    assert "default  0.0" in explained
    assert "default  none: the key is required" in explain("train.learning_rate").out


def test_the_options_of_the_recipe_and_of_plugins_are_explained_too(explain):
    assert 'allowed  "cola" | "sst2"' in explain("task.name").out
    assert "Minutes" in explain("callbacks.0.minutes").out


def test_a_table_is_shown_with_all_its_values(explain):
    lines = [line.split() for line in explain("train").out.splitlines()]
    assert ["train.epochs", "=", "4", "child.toml:4"] in lines
    assert ["train.accumulate", "=", "1", "default"] in lines


def test_without_a_key_every_key_is_explained_once(explain):
    lines = explain().out.splitlines()
    for shown in (
        "  train.epochs                  4  (child.toml:4)",
        "  train.ema                     not given",
        "  seed          42  (default)",
        "  callbacks[0].minutes  5.0  (child.toml:9)",
        "  data.limit.train  10  (child.toml:6)",
    ):
        assert [" ".join(line.split()) for line in lines].count(" ".join(shown.split())) == 1
    assert "[train]" in lines
    assert lines.count("the spec") == 1
    joined = " ".join(" ".join(lines).split())
    for model, name in ((Train, "train"), (Checkpoint, "checkpoint")):
        for key, field in model.model_fields.items():
            assert f"{name}.{key} " in joined
            assert field.description in joined


def test_json_has_value_origin_meaning_and_allowed_values(explain):
    [one] = json.loads(explain("train.precision", "--json").out)
    assert one == {
        "key": "train.precision",
        "value": "no",
        "origin": "default",
        "meaning": "Number type of the forward pass.",
        "allowed": '"no" | "bf16" | "fp16" | "fp8"',
        "default": "no",
    }
    every = {one["key"]: one for one in json.loads(explain("--json").out)}
    assert every["train.precision"] == one
    assert every["train.learning_rate"]["origin"] == "parent.toml:12 (extended)"
    assert every["train.ema"]["value"] is None


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("train.learning_rat", "did you mean 'train.learning_rate'?"),
        ("learning_rate", "did you mean 'train.learning_rate'?"),
        ("optimizer.wieght_decay", "did you mean 'optimizer.weight_decay'?"),
        ("data.limit.validation", "[data.limit] has no key 'validation'; it has train"),
        ("callbacks.3.name", "[callbacks] has no key '3'; it has 0"),
        ("seed.x", "[seed] has no key 'x'; it has none"),
        ("nonsense", "it has recipe, task"),
    ],
)
def test_an_unknown_key_exits_2_with_what_was_meant(explain, key, said):
    outcome = explain(key)
    assert outcome.code == 2
    assert said in outcome.err
    assert "Traceback" not in outcome.err


def test_a_wrong_spec_is_shown_with_its_problems(explain, tmp_path):
    (tmp_path / "child.toml").write_text(CHILD.replace("epochs = 4", "epoch = 4"))
    outcome = explain("train.epochs")
    assert outcome.code == 2
    assert outcome.err.startswith("child.toml:4:1: error[unknown-key]")
