"""The checks of optimizers, schedules, callbacks and trackers, each in a short run of a recipe."""

from __future__ import annotations

import json
import math
from functools import cached_property
from pathlib import Path
from typing import Any

from taskrecipe.plugins.kinds import Listener, MetricLrFactor
from taskrecipe.plugins.registry import Group, Registry
from taskrecipe.plugins.trackers import Tracking
from taskrecipe.spec.spec import Spec
from taskrecipe.testing.requirements import require, require_light_import
from taskrecipe.testing.subject import Check, Subject
from taskrecipe.testing.training_checks import one_batch_is_overfitted, resume_is_exact, training_is_deterministic
from taskrecipe.training.control import Control
from taskrecipe.training.events import Event

UPDATES, WARMUP = 40, 8
"""The length of the run that a schedule is asked about."""

KEYS: dict[Group, str] = {
    "optimizers": "optimizer",
    "schedules": "schedule",
    "callbacks": "callbacks",
    "trackers": "track",
}


class PluginSubject(Subject):
    """The plugin under test, in a run of the recipe `glue` on its sample data."""

    def __init__(self, group: Group, name: str, options: dict[str, Any], registry: Registry, folder: Path) -> None:
        super().__init__("glue", {"name": "mrpc"}, registry, folder)
        self.learning_rate = options.pop("learning_rate", None)
        self.group, self.plugin, self.table = group, name, {"name": name, **options}

    def spec(self, **settings: Any) -> Spec:
        """Return the sample's spec with the plugin in it."""
        rate = {} if self.learning_rate is None else {"train__learning_rate": self.learning_rate}
        values = super().spec(**settings, **rate).model_dump(exclude_unset=True)
        key = KEYS[self.group]
        given = {**values.get(key, {}), **self.table} if key in ("optimizer", "schedule") else self.table
        values[key] = [given] if key == "callbacks" else given
        return Spec.model_validate(values, context={"registry": self.registry})

    @property
    def plugin_class(self) -> Any:
        """The class that is registered under the name."""
        return self.registry.find(self.group, self.plugin).load()

    def make(self) -> Any:
        """The plugin with the given keys."""
        return self.plugin_class.model_validate(self.table)

    @cached_property
    def events(self) -> list[Event]:
        """Every event of a short run without the plugin."""
        loop = Subject("glue", self.task, self.registry, self.folder).loop(self.few, train__batch_size=4)
        return list(loop.run())


def is_documented(subject: Any) -> None:
    """Everything that `recipe show` shows has a description."""
    require((subject.plugin_class.__doc__ or "").strip(), "the class has no docstring")
    for key, field in subject.plugin_class.model_fields.items():
        require(field.description, f"key {key!r} has no description")


def importing_it_is_light(subject: Any) -> None:
    """Validating and listing import the module, so it must not import torch and the like."""
    require_light_import(subject.registry, subject.group, subject.plugin)


# Schedules ------------------------------------------------------------------------------------------


def factors_are_finite(subject: Any) -> None:
    """At every update the learning rate is multiplied by a number that is not negative; at some by more than 0."""
    factors = _factors(subject)
    for update, factor in enumerate(factors):
        require(math.isfinite(factor) and factor >= 0, f"the factor at update {update} is {factor}")
    require(any(factors), "the learning rate is 0 at every update")


def factors_depend_on_the_update_alone(subject: Any) -> None:
    """A resumed run asks for the factors of later updates only, and in any order."""
    lr_factor = subject.make().build(UPDATES, WARMUP)
    if isinstance(lr_factor, MetricLrFactor):
        return
    backwards = [lr_factor(update) for update in reversed(range(UPDATES))]
    require(backwards[::-1] == _factors(subject), "a factor depends on which factors were asked for before it")


def state_of_the_schedule_is_restored(subject: Any) -> None:
    """A schedule that follows a metric goes on after a resume as if it had not stopped."""
    first, second = (subject.make().build(UPDATES, WARMUP) for _ in range(2))
    if not isinstance(first, MetricLrFactor):
        return
    for _ in range(3):
        first.observe(1.0)
    second.restore(json.loads(json.dumps(first.state())))
    for factor in (first, second):
        factor.observe(1.0)
    require(first(UPDATES - 1) == second(UPDATES - 1), "what `state` returns does not restore the schedule")


def _factors(subject: Any) -> list[float]:
    lr_factor = subject.make().build(UPDATES, WARMUP)
    return [float(lr_factor(update)) for update in range(UPDATES)]


# Callbacks ------------------------------------------------------------------------------------------


def every_event_is_taken(subject: Any) -> None:
    """The listener receives every event of a run and raises at none."""
    _listen(subject, subject.make().build()).close()


def state_of_the_listener_is_restored(subject: Any) -> None:
    """What the listener remembers is JSON, and a new listener that restores it remembers the same."""
    kept = json.loads(json.dumps(_listen(subject, subject.make().build()).state()))
    renewed = subject.make().build()
    renewed.restore(kept)
    require(renewed.state() == kept, f"`state` was {kept}, and after `restore` it is {renewed.state()}")


def _listen(subject: Any, listener: Any) -> Any:
    require(isinstance(listener, Listener), f"`build` must return a Listener, not {type(listener).__name__}")
    for event in subject.events:
        listener.on_event(event, Control())
    return listener


# Trackers -------------------------------------------------------------------------------------------


def records_are_taken(subject: Any) -> None:
    """The tracker is built, started, sent the spec and every number of a run, and finished, without an error."""
    warnings: list[str] = []
    folder = subject.folder / "tracker"
    config = subject.spec().model_dump(mode="json")
    tracking = Tracking(subject.plugin, lambda: subject.make().build("run", str(folder)), config, warnings.append)
    for event in subject.events:
        tracking.on_event(event, Control())
    tracking.close()
    require(not warnings, "; ".join(warnings))


PLUGIN_CHECKS: dict[Group, tuple[Check, ...]] = {
    "optimizers": (
        is_documented,
        importing_it_is_light,
        training_is_deterministic,
        resume_is_exact,
        one_batch_is_overfitted,
    ),
    "schedules": (
        is_documented,
        importing_it_is_light,
        factors_are_finite,
        factors_depend_on_the_update_alone,
        state_of_the_schedule_is_restored,
        resume_is_exact,
    ),
    "callbacks": (is_documented, importing_it_is_light, every_event_is_taken, state_of_the_listener_is_restored),
    "trackers": (is_documented, importing_it_is_light, records_are_taken),
}
