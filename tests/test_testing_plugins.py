"""The conformance kit for optimizers, schedules, callbacks and trackers: ours pass it, and every check can fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from taskrecipe import Callback, Listener, Optimizer, Schedule, Tracker, installed
from taskrecipe.plugins.registry import Group, Plugin, Registry
from taskrecipe.testing import callback_conformance, optimizer_conformance, plugin_checks, schedule_conformance

test_adamw = optimizer_conformance("adamw")
test_plateau = schedule_conformance("reduce_lr_on_plateau")
test_cosine = schedule_conformance("cosine")
test_stop_when = callback_conformance("stop_when", metric="f1", above=0.9)


class Plain(Optimizer):
    pass


class Forgetful(Optimizer):
    """Has state that is not saved."""

    def build(self, groups: list[Any], learning_rate: float) -> Any:
        import torch

        class Drifting(torch.optim.SGD):
            taken = 0

            def step(self, closure: Any = None) -> Any:
                self.taken += 1
                for group in self.param_groups:
                    group["momentum"] = 0.0
                    for parameter in group["params"]:
                        if parameter.grad is not None:
                            parameter.grad.mul_(1.0 / self.taken)
                return super().step(closure)

        return Drifting(groups, lr=learning_rate)


class Negative(Schedule):
    """Falls below zero."""

    def build(self, updates: int, warmup: int) -> Any:
        return lambda update: 1.0 - update / 10


class Counting(Schedule):
    """Counts how often it was asked."""

    def build(self, updates: int, warmup: int) -> Any:
        asked: list[int] = []

        def lr_factor(update: int) -> float:
            asked.append(update)
            return 1.0 / len(asked)

        return lr_factor


class Choosy(Callback):
    """Fails at evaluations."""

    def build(self) -> Listener:
        class Failing(Listener):
            def on_event(self, event: Any, control: Any) -> None:
                if event.name == "evaluate":
                    raise KeyError("f2")

        return Failing()


class Amnesiac(Callback):
    """Remembers what it can't restore."""

    def build(self) -> Listener:
        class Remembering(Listener):
            seen = 0

            def on_event(self, event: Any, control: Any) -> None:
                self.seen += 1

            def state(self) -> dict[str, Any]:
                return {"seen": self.seen}

        return Remembering()


class Broken(Tracker):
    """Can't be started."""

    def build(self, run_name: str, folder: str) -> Any:
        raise ConnectionError("no service")


@pytest.mark.parametrize(
    ("check", "group", "plugin", "message"),
    [
        (plugin_checks.is_documented, "optimizers", "Plain", "has no docstring"),
        (plugin_checks.importing_it_is_light, "optimizers", "Plain", "imports .*torch"),
        (plugin_checks.resume_is_exact, "optimizers", "Forgetful", "keeps state that is not saved"),
        (plugin_checks.factors_are_finite, "schedules", "Negative", "the factor at update 11 is"),
        (plugin_checks.factors_depend_on_the_update_alone, "schedules", "Counting", "depends on which factors"),
        (plugin_checks.state_of_the_listener_is_restored, "callbacks", "Amnesiac", "after `restore` it is"),
        (plugin_checks.records_are_taken, "trackers", "Broken", "ConnectionError: no service"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_broken_plugin_fails(check: Any, group: Group, plugin: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=message):
        check(subject(group, plugin, tmp_path))


def test_a_callback_that_raises_is_shown_with_its_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="f2"):
        plugin_checks.every_event_is_taken(subject("callbacks", "Choosy", tmp_path))


def subject(group: Group, plugin: str, folder: Path) -> plugin_checks.PluginSubject:
    target = f"tests.test_testing_plugins:{plugin}"
    plugins = [*installed().plugins, Plugin(group, "broken", "toys", "1", target)]
    return plugin_checks.PluginSubject(group, "broken", {}, Registry(plugins), folder)
