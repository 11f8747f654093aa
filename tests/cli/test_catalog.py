"""`recipe list`, `recipe show`, `recipe plugins`: what is installed, the broken included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.distributions import install


def test_list_shows_what_a_recipe_is_for_its_tasks_metrics_and_owner(recipe, acme):
    listed = recipe("list").out
    section = listed[listed.index("acme-recipes 1.0") :]
    assert "words" in section
    assert "Guess a word from its neighbors." in section
    assert "More about it." not in section
    assert "tasks: near, far" in section
    assert "metrics: hits, misses" in section


def test_no_built_in_plugin_is_broken(recipe):
    assert [plugin["error"] for plugin in json.loads(recipe("plugins", "--json").out) if plugin["error"]] == []


def test_list_has_every_built_in_recipe_and_none_is_broken(recipe):
    recipes = json.loads(recipe("list", "--json").out)["recipes"]
    assert {"glue", "clm", "mlm", "swag", "mim", "detection"} <= {entry["name"] for entry in recipes}
    assert [entry["error"] for entry in recipes if entry["error"]] == []
    assert all(entry["description"] and entry["metrics"] for entry in recipes)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no license')", "RuntimeError: no license"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("class Thing: pass", "not a subclass of taskrecipe.recipe.Recipe"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_broken_plugin_is_shown_as_broken_and_hides_nothing(recipe, site, source, reason):
    install(site, "broken-recipes", {"recipes": {"thing": "broken_thing:Thing"}}, {"broken_thing": source})
    listed = recipe("list")
    assert listed.code == 0
    text = " ".join(listed.out.split())
    assert "glue" in text
    assert "recipe 'thing' (broken_thing:Thing) of broken-recipes 1.0" in text
    assert reason in text
    assert recipe("--help").code == 0


def test_using_a_broken_plugin_exits_5_naming_entry_point_owner_and_cause(recipe, site):
    install(site, "broken-recipes", {"recipes": {"thing": "broken_thing:Thing"}}, {"broken_thing": "1 / 0"})
    shown = recipe("show", "thing")
    assert shown.code == 5
    assert "recipe 'thing' (broken_thing:Thing) of broken-recipes 1.0 failed to import: ZeroDivisionError" in shown.err
    assert "Traceback" not in shown.err


def test_a_recipe_whose_metrics_fail_keeps_its_description(recipe, site):
    source = '''
        from taskrecipe.recipe import Recipe
        class Thing(Recipe):
            """A thing."""
            def metrics(self):
                raise KeyError("oops")
    '''
    install(site, "half-recipes", {"recipes": {"thing": "half_thing:Thing"}}, {"half_thing": source})
    [entry] = [entry for entry in json.loads(recipe("list", "--json").out)["recipes"] if entry["name"] == "thing"]
    assert entry["description"] == "A thing."
    assert "KeyError: 'oops'" in entry["error"]


def test_plugins_gives_owner_version_state_and_load_time_of_every_entry_point(recipe, acme):
    install(acme, "broken-recipes", {"trackers": {"thing": "broken_thing:Thing"}}, {"broken_thing": "1 / 0"})
    plugins = {(p["group"], p["name"]): p for p in json.loads(recipe("plugins", "--json").out)}
    words = plugins["recipes", "words"]
    assert (words["distribution"], words["version"], words["state"], words["error"]) == (
        "acme-recipes",
        "1.0",
        "ok",
        None,
    )
    assert words["target"] == "acme:Words"
    assert words["load_ms"] > 0
    thing = plugins["trackers", "thing"]
    assert thing["state"] == "broken"
    assert "ZeroDivisionError" in thing["error"]
    assert {group for group, _ in plugins} == {
        "recipes",
        "techniques",
        "optimizers",
        "schedules",
        "callbacks",
        "trackers",
    }


def test_plugins_says_how_to_name_one_of_two_owners(recipe, site):
    source = "from taskrecipe.recipes.glue import Glue"
    install(site, "rival-recipes", {"recipes": {"glue": "rival:Glue"}}, {"rival": source})
    listed = recipe("plugins").out
    assert "use rival-recipes:glue" in listed
    assert "use taskrecipe:glue" in listed
    names = {entry["name"] for entry in json.loads(recipe("list", "--json").out)["recipes"]}
    assert {"rival-recipes:glue", "taskrecipe:glue"} <= names
    clash = recipe("show", "glue")
    assert clash.code == 2
    assert "'taskrecipe:glue'" in clash.err
    assert recipe("show", "rival-recipes:glue").code == 0


def test_plugins_can_be_switched_off(recipe, acme, monkeypatch):
    monkeypatch.setenv("TASKRECIPE_DISABLE_PLUGINS", "1")
    assert "words" not in recipe("list").out
    assert recipe("show", "words").code == 2


def test_show_explains_options_metrics_columns_and_gives_an_example(recipe, acme):
    shown = recipe("show", "words").out
    text = " ".join(shown.split())
    assert 'name "near" | "far"; required Which neighbors.' in text
    assert "reach integer >= 1; required How far to look." in text
    assert "share number > 0, < 1; default 0.5 Share of words to guess." in text
    assert "inner.depth integer >= 1; required if [inner] is given How deep." in text
    assert "near hits (higher is better)" in text
    assert "far misses (lower is better), hits (higher is better)" in text
    assert "text (a text); weight (optional: how much it counts)" in text
    assert 'recipe = "words"' in text
    assert "More about it." in text


def test_show_takes_plugins_of_every_group(recipe, acme):
    text = " ".join(recipe("show", "sluggish").out.split())
    assert "sluggish: optimizer of acme-recipes 1.0" in text
    assert "drag number >= 0, <= 1; required How much is held back." in text
    assert '[optimizer] name = "sluggish"' in text
    assert "[[callbacks]]" in recipe("show", "bell").out
    blur = " ".join(recipe("show", "blur").out.split())
    assert "blur: technique of acme-recipes 1.0" in blur
    assert '[[techniques]] name = "blur" # radius = 2' in blur
    assert recipe("show", "cosine").code == 0


def test_show_asks_which_group_is_meant(recipe, acme):
    install(acme, "other", {"schedules": {"words": "other:Words"}}, {"other": OTHER_SCHEDULE})
    unclear = recipe("show", "words")
    assert unclear.code == 2
    assert "recipes and schedules" in unclear.err
    assert "--group recipes" in unclear.err
    assert "A schedule of words." in recipe("show", "words", "--group", "schedules").out


OTHER_SCHEDULE = '''
    from taskrecipe.plugins.kinds import Schedule
    class Words(Schedule):
        """A schedule of words."""
'''


def test_show_suggests_a_near_name(recipe):
    unknown = recipe("show", "adamv")
    assert unknown.code == 2
    assert "did you mean 'adamw'?" in unknown.err


def test_lines_fit_the_terminal(recipe, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    text, _ = recipe("show", "glue").out.split("Example")
    assert 60 < max(map(len, text.splitlines())) <= 70


def test_list_has_the_techniques_after_the_recipes(recipe, acme):
    broken = {"techniques": {"broken": "broken_technique:Thing"}}
    install(acme, "broken-techniques", broken, {"broken_technique": "1 / 0"})
    text = recipe("list").out
    section = " ".join(text[text.index("Techniques, for any recipe, of acme-recipes 1.0") :].split())
    assert "blur Blurs a bit. Techniques" in section
    assert "broken broken: technique 'broken' (broken_technique:Thing)" in section
    listed = {entry["name"]: entry for entry in json.loads(recipe("list", "--json").out)["techniques"]}
    owner = {"distribution": "acme-recipes", "version": "1.0"}
    assert listed["blur"] == {"name": "blur", **owner, "description": "Blurs a bit.", "error": None}
    assert "ZeroDivisionError" in listed["broken"]["error"]


def test_every_installed_plugin_can_be_shown(recipe):
    for plugin in json.loads(recipe("plugins", "--json").out):
        shown = recipe("show", plugin["name"], "--group", plugin["group"])
        assert shown.code == 0, shown.err
        assert Path(plugin["name"]).name in shown.out
