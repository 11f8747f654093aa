"""What happens in a run, as one stream of events that console, log, trackers and callbacks receive."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Event:
    """Something that happened after `step` updates."""

    name: ClassVar[str] = "event"
    step: int

    @property
    def logged(self) -> bool:
        """Whether it is a line of log.jsonl."""
        return True

    def record(self) -> dict[str, Any]:
        """Return the event as a line of log.jsonl."""
        return {
            "event": self.name,
            **{key: value for key, value in asdict(self).items() if value is not None},
        }

    def timed_record(self) -> dict[str, Any]:
        """Return the record with the time, in seconds since 1970."""
        return {**self.record(), "time": round(time.time(), 3)}


@dataclass(frozen=True)
class Planned(Event):
    """A dry run has measured what the run would do and cost."""

    name: ClassVar[str] = "plan"
    facts: dict[str, str]
    seconds: float = 0.0
    """How long all updates take, without evaluations."""


@dataclass(frozen=True)
class Opened(Event):
    """The run has a folder."""

    name: ClassVar[str] = "open"
    folder: str

    @property
    def logged(self) -> bool:
        """The log is in that folder, and doesn't repeat its name."""
        return False


@dataclass(frozen=True)
class About(Event):
    """Something is known about the run before it trains: its spec, device, data, model."""

    name: ClassVar[str] = "about"
    facts: dict[str, str]


@dataclass(frozen=True)
class Sample(Event):
    """The run trains on sample data and a tiny model, for this reason."""

    name: ClassVar[str] = "sample"
    reason: str


@dataclass(frozen=True)
class Start(Event):
    """The run starts, or continues from `resumed_from`."""

    name: ClassVar[str] = "start"
    updates: int
    updates_per_epoch: int | None
    best_metric: str = "loss"
    """The metric that decides the best checkpoint."""
    resumed_from: int | None = None


@dataclass(frozen=True)
class EpochStart(Event):
    """An epoch starts."""

    name: ClassVar[str] = "epoch"
    epoch: int


@dataclass(frozen=True)
class Updated(Event):
    """An update was taken. Its numbers are read from the device every `[log].every` updates; else they are None."""

    name: ClassVar[str] = "update"
    epoch: int
    learning_rate: float
    loss: float | None = None
    """The mean over the whole update."""
    terms: dict[str, float] | None = None
    """The loss term by term, where there are several."""
    grad_norm: float | None = None
    rows_per_second: float | None = None
    data_wait: float | None = None
    """Share of the time since the last line that the loop waited for data."""
    memory_mb: float | None = None
    tokens_per_second: float | None = None
    """Tokens without padding; None for rows without tokens."""

    @property
    def logged(self) -> bool:
        """Only updates whose numbers were read are logged."""
        return self.loss is not None


@dataclass(frozen=True)
class Evaluating(Event):
    """A batch of an evaluation is done."""

    name: ClassVar[str] = "evaluating"
    split: str
    done: int
    total: int

    @property
    def logged(self) -> bool:
        """It only moves the progress bar."""
        return False


@dataclass(frozen=True)
class Evaluated(Event):
    """An evaluation is done; `best` says whether it is the best so far."""

    name: ClassVar[str] = "evaluate"
    epoch: int
    metrics: dict[str, float]
    best: bool
    seconds: float


@dataclass(frozen=True)
class FinalEvaluated(Event):
    """The exported weights, those after update `weights`, were evaluated on the splits of `[evaluate].final`."""

    name: ClassVar[str] = "final"
    weights: int
    metrics: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class Saved(Event):
    """A checkpoint was committed; `seconds` is how long training waited for it."""

    name: ClassVar[str] = "save"
    checkpoint: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Warned(Event):
    """Something the user should know that doesn't end the run."""

    name: ClassVar[str] = "warning"
    message: str


@dataclass(frozen=True)
class End(Event):
    """The run has ended: finished, stopped by a signal, or failed."""

    name: ClassVar[str] = "end"
    status: str
    reason: str


@dataclass(frozen=True)
class Reported(Event):
    """A report of the run was written."""

    name: ClassVar[str] = "report"
    path: str

    @property
    def logged(self) -> bool:
        """It comes after the end, which is the last line of a log."""
        return False


@dataclass(frozen=True)
class Mirrored(Event):
    """At the end of a run: its folder is being copied to `url`, or is whole there once `done`."""

    name: ClassVar[str] = "mirror"
    url: str
    done: bool

    @property
    def logged(self) -> bool:
        """It comes after the end, which is the last line of a log."""
        return False


_KINDS: dict[str, type[Event]] = {kind.name: kind for kind in Event.__subclasses__()}


def read_event(record: Mapping[str, Any]) -> Event:
    """Make the event that `record` returned."""
    values = {key: value for key, value in record.items() if key not in ("event", "time")}
    kind = _KINDS[record["event"]]
    return kind(**{"updates_per_epoch": None, **values} if kind is Start else values)
