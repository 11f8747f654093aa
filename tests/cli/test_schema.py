"""`recipe schema`: what editors check specs against."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from tests.support.distributions import install

from taskrecipe.spec.spec import Spec

SPECS = Path(__file__).parents[2] / "specs"
MRPC = tomllib.loads((SPECS / "mrpc.toml").read_text())
WORDS = {
    "spec_version": 1,
    "recipe": "words",
    "task": {"name": "near", "reach": 2, "inner": {"depth": 1}},
    "model": {"name": "some/model"},
    "data": {"path": "some/data"},
    "train": {"epochs": 1, "learning_rate": 1e-3},
    "optimizer": {"name": "sluggish", "drag": 0.5},
    "callbacks": [{"name": "bell", "times": 2}],
    "track": {"name": "tensorboard"},
}


@pytest.fixture
def accepts(recipe, acme):
    """Whether the schema of everything installed accepts a spec."""
    return Draft202012Validator(json.loads(recipe("schema").out)).is_valid


def test_it_is_valid_by_the_meta_schema(recipe, acme):
    for arguments in ([], ["words"]):
        schema = json.loads(recipe("schema", *arguments).out)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        Draft202012Validator.check_schema(schema)


def test_every_bundled_spec_validates(accepts):
    paths = sorted(SPECS.rglob("*.toml"))
    assert len(paths) >= 1
    assert [str(path) for path in paths if not accepts(tomllib.loads(path.read_text()))] == []


def test_a_part_needs_no_key_and_may_have_no_unknown_one(recipe, acme):
    accepts = Draft202012Validator(json.loads(recipe("schema", "--part").out)).is_valid
    assert accepts({})
    assert accepts({"train": {"batch_size": 8}, "optimizer": {"weight_decay": 0.1}})
    assert accepts({"recipe": "words", "task": {"reach": 2}})
    assert not accepts({"train": {"batch_sise": 8}})
    assert not accepts({"train": {"batch_size": "many"}})
    assert not Draft202012Validator(json.loads(recipe("schema").out)).is_valid({"train": {"batch_size": 8}})


def test_fields_of_plugins_are_in_it(accepts):
    assert accepts(WORDS)


def drop(spec, *path):
    changed = copy.deepcopy(spec)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return changed


def with_value(spec, path, value):
    changed = copy.deepcopy(spec)
    inner = changed
    for key in path[:-1]:
        inner = inner.setdefault(key, {}) if isinstance(key, str) else inner[key]
    inner[path[-1]] = value
    return changed


TABLES = [
    (), ("task",), ("task", "inner"), ("train",), ("optimizer",), ("schedule",), ("evaluate",),
    ("checkpoint",), ("log",), ("callbacks", 0), ("track",), ("launch",),
]  # fmt: skip


@pytest.mark.parametrize("parent", [{}, {"extends": "parent.toml"}])
def test_a_misspelt_key_is_refused_in_every_table(accepts, parent):
    spec = {**WORDS, "schedule": {"name": "linear"}, **parent}
    assert accepts(spec)
    assert [table for table in TABLES if accepts(with_value(spec, (*table, "mispelt"), 1))] == []


REQUIRED = [
    ("spec_version",), ("recipe",), ("task",), ("task", "name"), ("task", "inner", "depth"),
    ("train",), ("train", "learning_rate"), ("optimizer", "drag"), ("track", "name"),
]  # fmt: skip


def test_a_missing_key_is_refused_unless_a_parent_may_have_it(accepts):
    assert [path for path in REQUIRED if accepts(drop(WORDS, *path))] == []
    extending = {**WORDS, "extends": "parent.toml"}
    assert [path for path in REQUIRED if not accepts(drop(extending, *path))] == []


def test_an_element_of_a_list_is_whole_even_where_a_parent_is_extended(accepts):
    assert not accepts({**WORDS, "extends": "parent.toml", "callbacks": [{"times": 2}]})
    assert accepts({**WORDS, "extends": "parent.toml", "callbacks": [{"name": "time_limit", "minutes": 2}]})
    assert not accepts({**WORDS, "extends": "parent.toml", "callbacks": [{"name": "time_limit"}]})


WRAP = '''
    from pydantic import Field
    from taskrecipe.recipe import Recipe
    from taskrecipe.spec.spec import RecipeChoice
    from taskrecipe.spec.table import TaskOptions

    class Wrap(Recipe):
        """Recipes in a recipe."""

        class Options(TaskOptions):
            inner: RecipeChoice = Field(description="One.")
            others: list[RecipeChoice] = Field(default=[], description="More.")
'''


def test_a_recipe_inside_a_recipe_is_checked_by_its_own_options(recipe, acme):
    install(acme, "wrap", {"recipes": {"wrap": "wrap_recipe:Wrap"}}, {"wrap_recipe": WRAP})
    accepts = Draft202012Validator(json.loads(recipe("schema").out)).is_valid
    words = {"recipe": "words", "task": WORDS["task"]}
    spec = {**WORDS, "recipe": "wrap", "task": {"inner": words, "others": [copy.deepcopy(words)]}}
    assert accepts(spec)
    assert accepts(with_value(spec, ("task", "inner"), {"recipe": "wrap", "task": {"inner": words}}))
    for parent in ({}, {"extends": "parent.toml"}):
        assert not accepts({**with_value(spec, ("task", "inner", "task", "mispelt"), 1), **parent})
        assert not accepts({**with_value(spec, ("task", "others", 0, "task", "mispelt"), 1), **parent})
        assert not accepts({**drop(spec, "task", "others", 0, "recipe"), **parent})
        assert not accepts({**drop(spec, "task", "others", 0, "task", "reach"), **parent})
        assert accepts({**drop(spec, "task", "inner", "task", "reach"), **parent}) is bool(parent)


def test_a_table_whose_plugin_the_parent_names_takes_only_keys_that_some_plugin_has(accepts):
    assert accepts({"extends": "parent.toml", "optimizer": {"drag": 0.1}, "task": {"reach": 3}})
    assert not accepts({"extends": "parent.toml", "optimizer": {"dragg": 0.1}})
    assert not accepts({"extends": "parent.toml", "task": {"reech": 3}})


def test_a_table_that_names_no_plugin_is_the_default_one_s(accepts):
    spec = drop(WORDS, "optimizer")
    assert accepts({**spec, "optimizer": {"beta1": 0.8}, "schedule": {"warmup": 0.1}})
    assert not accepts({**spec, "optimizer": {"drag": 0.5}})
    assert not accepts({**spec, "schedule": {"num_cycles": 0.5}})


def test_options_are_those_of_the_recipe_that_is_named(accepts):
    assert not accepts({**MRPC, "task": WORDS["task"]})
    assert not accepts({**WORDS, "optimizer": {"name": "adamw", "drag": 0.5}})
    assert not accepts({**WORDS, "recipe": "wrods"})


def test_the_schema_of_one_recipe_takes_no_other(recipe, acme):
    accepts = Draft202012Validator(json.loads(recipe("schema", "glue").out)).is_valid
    assert accepts(MRPC)
    assert not accepts(WORDS)


def test_a_full_name_is_as_good_as_a_short_one(accepts):
    assert accepts({**WORDS, "recipe": "acme-recipes:words"})
    assert not accepts({**WORDS, "recipe": "acme-recipes:words", "task": {"name": "nowhere", "reach": 2}})


def test_a_broken_plugin_leaves_the_rest_checked(recipe, acme):
    install(acme, "broken", {"recipes": {"thing": "broken_thing:Thing"}}, {"broken_thing": "1 / 0"})
    accepts = Draft202012Validator(json.loads(recipe("schema").out)).is_valid
    assert accepts(WORDS)
    assert not accepts(with_value(WORDS, ("task", "mispelt"), 1))
    assert accepts({**WORDS, "recipe": "thing", "task": {"anything": 1}})


def test_an_unknown_or_broken_recipe_is_an_error(recipe, acme):
    assert recipe("schema", "wrods").code == 2
    install(acme, "broken", {"recipes": {"thing": "broken_thing:Thing"}}, {"broken_thing": "1 / 0"})
    assert recipe("schema", "thing").code == 5


def test_it_refuses_nothing_that_validation_accepts(accepts, recipe):
    spec = {**MRPC, "callbacks": [{"name": "time_limit", "minutes": 5.0}], "track": {"name": "tensorboard"}}
    assert accepts(spec)
    refused = 0
    for path in leaves(spec):
        for value in ("mrpc", "epoch", 0, 3, 0.5, 1e12, True, [], ["a"], {}, {"a": "b"}):
            changed = with_value(spec, path, value)
            if not accepts(changed):
                refused += 1
                with pytest.raises(ValidationError):
                    Spec.model_validate(changed)
    assert refused > 200


def leaves(value, path=()):
    if not isinstance(value, dict | list):
        return [path]
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return [leaf for key, inner in items for leaf in leaves(inner, (*path, key))]
