"""A conformance kit: one line in a plugin's tests checks everything that the loop relies on.

    from taskrecipe.testing import conformance, technique_conformance

    test_recipe = conformance("name-of-the-recipe")
    test_technique = technique_conformance("name-of-the-technique")

Pass required options of `[task]` by keyword: `conformance("glue", name="mrpc")`. Each check is a test of its own, on
the recipe's own sample data and tiny model. A technique is checked together with a recipe, by default `glue`.
Optimizers, schedules, callbacks and trackers have `optimizer_conformance` and so on; keys of theirs are keywords too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskrecipe.plugins.registry import Group, installed
from taskrecipe.testing.plugin_checks import PLUGIN_CHECKS, PluginSubject
from taskrecipe.testing.recipe_checks import RECIPE_CHECKS
from taskrecipe.testing.subject import Check, Subject
from taskrecipe.testing.technique_checks import TECHNIQUE_CHECKS

__all__ = [
    "callback_conformance",
    "conformance",
    "optimizer_conformance",
    "schedule_conformance",
    "technique_conformance",
    "tracker_conformance",
]


def conformance(recipe: str, /, **task: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named recipe, with `task` as its options."""
    return _make_test(RECIPE_CHECKS, lambda folder: Subject(recipe, task, installed(), folder))


def technique_conformance(
    technique: str, /, recipe: str = "glue", task: dict[str, Any] | None = None, **options: Any
) -> Callable[..., None]:
    """Return a test function with a case for every check of the named technique, applied to a recipe."""
    options_of_task = {"name": "mrpc"} if recipe == "glue" and task is None else task or {}
    table = {"name": technique, **options}
    return _make_test(TECHNIQUE_CHECKS, lambda folder: Subject(recipe, options_of_task, installed(), folder, [table]))


def optimizer_conformance(optimizer: str, /, learning_rate: float = 1e-3, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named optimizer, at a learning rate that suits it."""
    return _plugin_test("optimizers", optimizer, {"learning_rate": learning_rate, **options})


def schedule_conformance(schedule: str, /, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named schedule."""
    return _plugin_test("schedules", schedule, options)


def callback_conformance(callback: str, /, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named callback."""
    return _plugin_test("callbacks", callback, options)


def tracker_conformance(tracker: str, /, **options: Any) -> Callable[..., None]:
    """Return a test function with a case for every check of the named tracker."""
    return _plugin_test("trackers", tracker, options)


def _plugin_test(group: Group, name: str, options: dict[str, Any]) -> Callable[..., None]:
    return _make_test(PLUGIN_CHECKS[group], lambda folder: PluginSubject(group, name, options, installed(), folder))


def _make_test(checks: tuple[Check, ...], make_subject: Callable[[Path], Subject]) -> Callable[..., None]:
    import pytest

    shared: list[Subject] = []  # by all checks: preparing it takes longer than most of them

    @pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
    def test_plugin(check: Check, tmp_path_factory: pytest.TempPathFactory) -> None:
        if not shared:
            shared.append(make_subject(tmp_path_factory.mktemp("conformance")))
        check(shared[0])

    return test_plugin
