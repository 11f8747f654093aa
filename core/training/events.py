"""What happens in a run, as one stream that console, log, trackers and callbacks all listen to."""

from __future__ import annotations

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
        """The event as a line of log.jsonl."""
        return {
            "event": self.name,
            **{key: value for key, value in asdict(self).items() if value is not None},
        }


@dataclass(frozen=True)
class Start(Event):
    """The run begins, or goes on from `resumed_from`."""

    name: ClassVar[str] = "start"
    updates: int
    updates_per_epoch: int | None
    resumed_from: int | None = None


@dataclass(frozen=True)
class EpochStart(Event):
    """An epoch begins."""

    name: ClassVar[str] = "epoch"
    epoch: int


@dataclass(frozen=True)
class Updated(Event):
    """An update was taken. Numbers are read off the device only every `[log].every` updates; between, they are None."""

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

    @property
    def logged(self) -> bool:
        """Where its numbers were read."""
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
        """It is for who watches."""
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
class Saved(Event):
    """A checkpoint was committed."""

    name: ClassVar[str] = "save"
    checkpoint: str
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Warned(Event):
    """Something the user should know, which does not end the run."""

    name: ClassVar[str] = "warning"
    message: str


@dataclass(frozen=True)
class End(Event):
    """The run is over: finished, stopped early, or interrupted."""

    name: ClassVar[str] = "end"
    status: str
    reason: str
