"""When a run pauses before its end, so that a sweep can decide whether it is worth going on.

A run pauses only at evaluations that it makes anyway, so it takes the same updates and finds the same best checkpoint
as a run that never pauses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taskrecipe.training.loop import Loop


@dataclass(frozen=True)
class Pause:
    """A place to pause at, or limits that the best metric so far must keep."""

    share: float | None = None
    """Pause at the first evaluation after this share of all updates."""
    limits: tuple[tuple[float, float], ...] = ()
    """Shares of all updates, each with the value that the best metric must have reached from there on."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Pause:
        """Make the pause that a request in JSON has."""
        return cls(values["share"], tuple((share, value) for share, value in values["limits"]))

    def find_reason(self, loop: Loop) -> str | None:
        """Return why the run pauses after the evaluation that it has just made; None if it goes on."""
        step, total = loop.progress.step, loop.total
        if step >= total:
            return None
        if self.share is not None and step >= rung_update(self.share, total):
            return f"paused at {self.share:.3g} of all updates, to be promoted"
        limit = find_limit(self.limits, step / total)
        best, (name, direction) = loop.progress.best, loop.best_metric
        if limit is None:
            return None
        if best is None or (best.value < limit if direction == "max" else best.value > limit):
            found = "nothing" if best is None else f"{best.value:.4g}"
            return f"paused: the best {name} so far is {found}, and half of the earlier trials had {limit:.4g} by now"
        return None


def rung_update(share: float, total: int) -> int:
    """Return the update from which on an evaluation counts for a share of the whole."""
    return ceil(share * total - 1e-9)


def find_limit(limits: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return the value of the last limit that begins at or before a share; None before the first."""
    reached = [value for start, value in limits if start <= share + 1e-9]
    return reached[-1] if reached else None
