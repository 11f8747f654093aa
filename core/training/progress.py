"""All state of a run that is not a tensor, in one object that is saved as one."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from taskrecipe.core.recipe import Direction


@dataclass
class Best:
    """The best evaluation so far."""

    metric: str
    value: float
    step: int


@dataclass
class Progress:
    """How far a run is. Position in the data needs no field: it is the number of updates."""

    step: int = 0
    evaluated: int = 0
    """The step of the last evaluation; an evaluation that was interrupted is still due."""
    best: Best | None = None
    without_better: int = 0
    """Evaluations since the best one, which patience counts."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the last evaluation gave."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time spent on training, evaluation and saving, over all parts of the run."""

    def note(self, metric: str, direction: Direction, metrics: dict[str, float], min_delta: float) -> bool:
        """Take note of an evaluation at this step; return whether it is the best so far."""
        self.evaluated, self.metrics = self.step, metrics
        value = metrics[metric]
        if math.isfinite(value) and (self.best is None or _gain(value, self.best.value, direction) > min_delta):
            self.best, self.without_better = Best(metric, value, self.step), 0
            return True
        self.without_better += 1
        return False

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Progress:
        """What `to_json` gave, back."""
        best = values.pop("best")
        return cls(**values, best=Best(**best) if best else None)


def _gain(value: float, best: float, direction: Direction) -> float:
    return value - best if direction == "max" else best - value
