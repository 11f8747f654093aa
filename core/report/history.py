"""The history of a run, read from log.jsonl: its updates, evaluations, checkpoints and warnings, and when they were."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """One record with its place on every axis."""

    step: int
    epoch: float | None
    """Passes over the training rows; None for streamed rows, which have no epochs."""
    seconds: float | None
    """Seconds of work since the run began, pauses between sessions left out; None in logs without times."""
    record: Record

    def number(self, name: str) -> float | None:
        """Return a number of the record; None if it is missing or not finite."""
        return as_number(self.record.get(name))


@dataclass
class History:
    """What happened in a run, in order."""

    updates: list[Moment] = field(default_factory=list)
    evaluations: list[Moment] = field(default_factory=list)
    saves: list[Moment] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """What was said at the start: device, data, model."""
    total: int | None = None
    per_epoch: int | None = None
    best_metric: str = "loss"
    sample_reason: str | None = None
    end: Record | None = None
    seconds: float | None = None
    """Seconds of work up to the last record."""
    resumes: int = 0

    @property
    def best(self) -> Moment | None:
        """The evaluation of the best weights so far."""
        return next((moment for moment in reversed(self.evaluations) if moment.record.get("best") is True), None)

    @property
    def step(self) -> int:
        """The last update that the log knows of."""
        return max((moment.step for moment in (*self.updates, *self.evaluations, *self.saves)), default=0)


def read_history(records: Iterable[Record]) -> History:
    """Sort the records of a log. What an old or damaged log doesn't have is left out."""
    reader = HistoryReader()
    reader.add(records)
    return reader.history


class HistoryReader:
    """Makes the history of a log that may still grow."""

    def __init__(self) -> None:
        self.history, self._clock = History(), Clock()

    def add(self, records: Iterable[Record]) -> None:
        """Add further records."""
        for record in records:
            self.history.seconds = self._clock.advance(record)
            _add(self.history, record)


class Clock:
    """Counts the seconds of work. The time between the end of a session and its resume doesn't count."""

    def __init__(self) -> None:
        self.worked, self._has_started = 0.0, False
        self._last: float | None = None

    def advance(self, record: Record) -> float | None:
        """Return the seconds of work up to this record; None while no record had a time."""
        now, kind = as_number(record.get("time")), record.get("event")
        if now is None:
            return self.worked if self._last is not None else None
        opens_session = kind == "about" or (kind == "start" and "resumed_from" in record)
        if self._last is not None and not (opens_session and self._has_started):
            self.worked += max(0.0, now - self._last)
        self._has_started = kind == "start" or (self._has_started and kind != "about")
        self._last = now
        return self.worked


def as_number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _add(history: History, record: Record) -> None:
    match record.get("event"):
        case "update":
            history.updates.append(_moment(history, record))
        case "evaluate" if isinstance(record.get("metrics"), dict):
            history.evaluations.append(_moment(history, record))
        case "save":
            history.saves.append(_moment(history, record))
        case "warning":
            _add_warning(history, str(record.get("message", "")))
        case "about" if isinstance(record.get("facts"), dict):
            history.facts |= {str(name): str(value) for name, value in record["facts"].items()}
        case "sample":
            history.sample_reason = str(record.get("reason", ""))
        case "start":
            _start(history, record)
        case "end":
            history.end = record


def _add_warning(history: History, message: str) -> None:
    if message not in history.warnings:  # a resumed run warns again
        history.warnings.append(message)


def _start(history: History, record: Record) -> None:
    total, per_epoch = as_number(record.get("updates")), as_number(record.get("updates_per_epoch"))
    history.total = int(total) if total else history.total
    history.per_epoch = int(per_epoch) if per_epoch else None
    history.best_metric = str(record.get("best_metric", history.best_metric))
    history.resumes += "resumed_from" in record
    history.end = None


def _moment(history: History, record: Record) -> Moment:
    step = int(as_number(record.get("step")) or 0)
    return Moment(step, step / history.per_epoch if history.per_epoch else None, history.seconds, record)
