"""`recipe new`: a starter spec that validates as written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from taskrecipe.plugins.registry import Registry

RECIPES = Registry.read().names("recipes")


@pytest.mark.parametrize("name", RECIPES)
def test_a_starter_of_every_recipe_validates_as_written(recipe, tmp_path, name):
    path = tmp_path / "deep" / "spec.toml"
    assert recipe("new", name, path).code == 0
    assert tomllib.loads(path.read_text())["recipe"] == name
    checked = recipe("validate", path)
    assert checked.code == 0, checked.out + checked.err


def test_a_starter_of_a_plugin_is_made_from_its_options(recipe, acme, tmp_path):
    path = tmp_path / "words.toml"
    assert recipe("new", "words", path).code == 0
    text = path.read_text()
    assert tomllib.loads(text)["task"] == {"name": "near", "reach": 1}
    assert "# Which neighbors." in text
    assert "# share = 0.5" in text
    assert recipe("validate", path).code == 0


def test_an_existing_file_is_kept_unless_forced(recipe, tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text("mine")
    refused = recipe("new", "glue", path)
    assert refused.code == 2
    assert "--force" in refused.err
    assert path.read_text() == "mine"
    assert recipe("new", "glue", path, "--force").code == 0
    assert 'recipe = "glue"' in path.read_text()


def test_the_file_is_named_after_the_recipe_where_only_a_folder_is_known(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    assert recipe("new", "glue").code == 0
    assert recipe("new", "glue", "there").code == 0
    assert Path("glue.toml").is_file()
    assert Path("there/glue.toml").is_file()


def test_an_unknown_recipe_and_an_impossible_path_exit_2(recipe, tmp_path):
    assert recipe("new", "gleu", tmp_path / "a.toml").code == 2
    (tmp_path / "file").touch()
    impossible = recipe("new", "glue", tmp_path / "file" / "a.toml")
    assert impossible.code == 2
    assert "can't be written" in impossible.err


@pytest.mark.parametrize("name", RECIPES)
def test_a_starter_never_falls_back_to_sample_data(recipe, tmp_path, name):
    path = tmp_path / "spec.toml"
    assert recipe("new", name, path).code == 0
    assert tomllib.loads(path.read_text())["data"].get("offline", "error") == "error"
    assert 'offline = "error"' in path.read_text() or "sample = true" in path.read_text()
