"""A package can say which version of the contract it follows."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import recipe, site  # noqa: F401 - fixtures
from tests.support.distributions import install

from taskrecipe.plugins.registry import CONTRACT

OPTIMIZER = 'from taskrecipe import Optimizer\n\n\nclass Mine(Optimizer):\n    """Does nothing."""\n'


def add(site, version: str) -> None:  # noqa: F811
    install(
        site, "theirs", {"optimizers": {"mine": "theirs:Mine"}, "contract": {version: "theirs"}}, {"theirs": OPTIMIZER}
    )


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (
            str(CONTRACT + 1),
            f"follows version {CONTRACT + 1} of the contract; this taskrecipe keeps 1: upgrade taskrecipe",
        ),
        ("0", "follows version 0 of the contract; this taskrecipe keeps 1: upgrade theirs"),
        ("latest", "must be a number"),
    ],
)
def test_a_version_that_is_not_kept_is_refused_with_what_to_upgrade(recipe, site, version, said):  # noqa: F811
    add(site, version)
    shown = recipe("show", "mine")
    assert shown.code == 5
    assert "optimizer 'mine' (theirs:Mine) of theirs 1.0" in shown.err
    assert said in shown.err


def test_the_version_that_is_kept_is_taken_and_shown(recipe, site):  # noqa: F811
    add(site, str(CONTRACT))
    assert recipe("show", "mine").code == 0
    plugins = json.loads(recipe("plugins", "--json").out)
    [mine] = [plugin for plugin in plugins if plugin["name"] == "mine"]
    assert (mine["contract"], mine["state"]) == ("1", "ok")
