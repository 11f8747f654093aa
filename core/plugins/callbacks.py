"""The built-in callbacks, which stop a run by time or by a metric."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator
from typing_extensions import override

from taskrecipe.errors import UsageError
from taskrecipe.plugins.kinds import Callback, Listener
from taskrecipe.spec.table import Text
from taskrecipe.training.control import Control
from taskrecipe.training.events import End, Evaluated, Event

Bound = Annotated[float, Field(ge=-1e300, le=1e300)]


class TimeLimit(Callback):
    """Save and stop once the run has taken this long, over all resumes."""

    minutes: float = Field(gt=0.0, le=5_256_000.0, description="Minutes of running time, over all resumes.")

    @override
    def build(self) -> Listener:
        return Clock(self.minutes)


class Clock(Listener):
    """Measures the time a run takes. `now` returns seconds."""

    def __init__(self, minutes: float, now: Callable[[], float] = time.monotonic) -> None:
        self._minutes, self._now = minutes, now
        self._before, self._started = 0.0, now()

    @override
    def on_event(self, event: Event, control: Control) -> None:
        if self._seconds() >= self._minutes * 60 and not isinstance(event, End):
            control.stop(f"the time limit of {self._minutes:g} minutes is reached")

    @override
    def state(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._before, self._started = state["seconds"], self._now()

    def _seconds(self) -> float:
        return self._before + self._now() - self._started


class StopWhen(Callback):
    """Save and stop once an evaluated metric is above or below a bound."""

    metric: Text = Field(description="The metric to watch, as the recipe reports it.")
    above: Bound | None = Field(default=None, description="Stop when the metric is higher than this.")
    below: Bound | None = Field(default=None, description="Stop when the metric is lower than this.")

    @model_validator(mode="after")
    def _has_a_bound(self) -> StopWhen:
        if self.above is None and self.below is None:
            raise ValueError("stop_when needs 'above' or 'below', or both")
        if self.above is not None and self.below is not None and self.below > self.above:
            raise ValueError(f"every number is above {self.above:g} or below {self.below:g}; swap the two")
        return self

    @override
    def metrics(self) -> tuple[str, ...]:
        return (self.metric,)

    @override
    def build(self) -> Listener:
        return Watcher(self)


class Watcher(Listener):
    """Compares a metric with its bounds at each evaluation."""

    def __init__(self, bounds: StopWhen) -> None:
        self._bounds = bounds

    @override
    def on_event(self, event: Event, control: Control) -> None:
        if not isinstance(event, Evaluated):
            return
        metric, above, below = self._bounds.metric, self._bounds.above, self._bounds.below
        if metric not in event.metrics:
            raise UsageError(f"stop_when watches {metric!r}, but evaluation reports {', '.join(sorted(event.metrics))}")
        value = event.metrics[metric]  # NaN is neither above nor below a bound
        if above is not None and value > above:
            control.stop(f"{metric} is {value:g}, above {above:g}")
        elif below is not None and value < below:
            control.stop(f"{metric} is {value:g}, below {below:g}")
