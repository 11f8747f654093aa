"""Plugins that hang, exit or print at import: they are named, and nothing else is lost."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import psutil
import pytest
from tests.support.distributions import install

from taskrecipe.plugins import isolation
from taskrecipe.plugins.isolation import Failure, run_isolated

GOOD = (Path(__file__).parents[2] / "specs" / "mrpc.toml").read_text()
BAD_IMPORTS = {
    "sleeps": ("import time; time.sleep(100)", "did not finish within"),
    "holds_the_gil": ("9 ** 9 ** 9", "did not finish within"),
    "exits": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "exits_at_once": ("import os; os._exit(3)", "ended its process with exit code 3"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "kills_itself": ("import os; os.kill(os.getpid(), 9)", "ended its process by signal 9"),
    "raises": ("class Odd(BaseException): pass\nraise Odd('x')", "Odd: x"),
}


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(isolation, "LIMIT", 3.0)


@pytest.fixture
def bad_plugins(acme):
    """All bad plugins, each of its own distribution, and a good one."""
    for name, (source, _) in BAD_IMPORTS.items():
        install(acme, f"dist-{name}", {"recipes": {name: f"bad_{name}:Thing"}}, {f"bad_{name}": source})


def test_list_plugins_and_schema_name_every_bad_plugin_and_show_all_others(recipe, bad_plugins):
    start = time.monotonic()
    listed = {entry["name"]: entry for entry in json.loads(recipe("list", "--json").out)["recipes"]}
    plugins = {entry["name"]: entry for entry in json.loads(recipe("plugins", "--json").out)}
    schema = recipe("schema")
    assert time.monotonic() - start < 40  # three times one limit, not one for each plugin
    for name, (_, reason) in BAD_IMPORTS.items():
        for text in (listed[name]["error"], plugins[name]["error"], schema.err):
            assert f"recipe '{name}' (bad_{name}:Thing) of dist-{name} 1.0" in text
            assert reason in text
        assert plugins[name]["state"] == "broken"
    assert listed["words"]["metrics"] == ["hits", "misses"]
    assert listed["glue"]["error"] is None
    assert {"words", "glue", "sleeps"} <= set(json.loads(schema.out)["properties"]["recipe"]["enum"])


@pytest.mark.parametrize("name", BAD_IMPORTS)
def test_only_the_spec_that_uses_it_fails_validation(recipe, bad_plugins, tmp_path, name):
    for spec in ("a", name, "z"):
        (tmp_path / f"{spec}.toml").write_text(GOOD.replace('"glue"', f'"{spec}"') if spec == name else GOOD)
    outcome = recipe("validate", *(tmp_path / f"{spec}.toml" for spec in ("a", name, "z")))
    assert outcome.code == 5
    assert f"error[plugin-failed]: recipe '{name}' (bad_{name}:Thing) of dist-{name} 1.0" in outcome.out
    assert outcome.out.endswith("3 specs checked, 1 problem in 1\nhelp: recipe guide plugin-failed\n")


def test_what_a_plugin_prints_is_not_in_the_output(recipe, site):
    source = "print('hello')\nimport os\nos.system('echo hello')\nfrom taskrecipe.recipes.glue import Glue"
    install(site, "loud", {"recipes": {"loud": "loud:Glue"}}, {"loud": source})
    for command in ("list", "plugins"):
        assert "hello" not in recipe(command, "--json").out


def test_a_thousand_plugins_are_listed_without_delay(recipe, site):
    source = "from taskrecipe.recipe import Recipe\nclass Thing(Recipe):\n    'A thing.'"
    modules = {f"thing_{n}": source for n in range(1000)}
    install(site, "things", {"recipes": {f"thing_{n}": f"thing_{n}:Thing" for n in range(1000)}}, modules)
    start = time.monotonic()
    outcome = recipe("list", "--json")
    assert time.monotonic() - start < 30
    things = [entry for entry in json.loads(outcome.out)["recipes"] if entry["distribution"] == "things"]
    assert len(things) == 1000
    assert {entry["error"] for entry in things} == {None}


def test_a_hanging_module_of_many_plugins_is_waited_for_once(recipe, site):
    entries = {"recipes": {f"slow_{n}": "slow:Thing" for n in range(200)}}
    install(site, "slow", entries, {"slow": "import time; time.sleep(100)"})
    start = time.monotonic()
    things = [entry for entry in json.loads(recipe("list", "--json").out)["recipes"] if "slow_" in entry["name"]]
    assert time.monotonic() - start < 15
    assert all("did not finish" in entry["error"] for entry in things)


def test_results_keep_their_order_and_no_process_is_left():
    def work(n: int) -> int:
        if n == 3:
            os._exit(1)
        if n == 5:
            time.sleep(0.5)
        return n * n

    before = {child.pid for child in psutil.Process().children()}
    results = run_isolated(range(9), work)
    assert [one.reason if isinstance(one, Failure) else one for one in results] == [
        0, 1, 4, "ended its process with exit code 1", 16, 25, 36, 49, 64,
    ]  # fmt: skip
    assert {child.pid for child in psutil.Process().children()} <= before


@pytest.mark.parametrize("command", ["list", "plugins", "schema"])
def test_escapes_in_names_of_plugins_are_escaped(recipe, site, command):
    install(site, "odd\x1b[2Jdist", {"recipes": {"odd\x1b[31mname\u202e": "odd:Thing"}}, {"odd": "1 / 0"})
    outcome = recipe(command)
    assert outcome.code == 0
    assert (outcome.out + outcome.err).replace("\n", "").isprintable()
    assert "\\x1b[31mname" in outcome.out + outcome.err
