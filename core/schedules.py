"""The schedules that come with it: transformers' twelve, as functions of the update number.

Rates are shares of the peak, `[train].learning_rate`, so that a spec stays right when the peak changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from taskrecipe.core.errors import UsageError
from taskrecipe.core.plugins import MetricRate, Schedule
from taskrecipe.core.spec.table import LARGEST, Count, Share

if TYPE_CHECKING:
    import torch

Factor = Annotated[float, Field(gt=0.0, lt=1.0)]
Evaluations = Annotated[int, Field(ge=0, le=LARGEST)]
Curve = Literal["linear", "cosine", "1-sqrt"]


def updates_in(length: int | float, updates: int) -> int:
    """How many of all `updates` a length is that is given as a number of them, or as a share."""
    if isinstance(length, int):
        return length
    # 0.07 * 100 is a hair above 7; that is not an eighth update.
    return math.ceil(round(length * updates, 6))


class _Fixed(Schedule):
    """A schedule that the update number alone decides, by the function that transformers has for it."""

    kind: ClassVar[str]
    """What transformers calls it."""

    def build(self, updates: int, warmup: int) -> Callable[[int], float]:
        """Return transformers' own function, taken from the scheduler around it."""
        from transformers import get_scheduler

        _require_peak(updates, warmup)
        scheduler = get_scheduler(self.kind, _peak_of_one(), warmup, updates, self._options(updates, warmup))
        (function,) = scheduler.lr_lambdas
        return lambda update: float(function(update))

    def _options(self, updates: int, warmup: int) -> dict[str, Any]:
        """The keys that transformers has too, under the same names."""
        return self.model_dump(exclude=set(Schedule.model_fields), exclude_none=True)


def _require_peak(updates: int, warmup: int) -> None:
    if warmup >= updates:
        raise UsageError(
            f"[schedule].warmup is {warmup} updates, and the whole run has {updates}: the learning rate would "
            f"never reach its peak; take fewer, or a share such as 0.1"
        )


def _peak_of_one() -> torch.optim.Optimizer:
    """An optimizer of nothing: transformers' schedulers ask for one, and read the peak rate off it."""
    import torch

    return torch.optim.SGD([torch.zeros(1)], lr=1.0)


class Linear(_Fixed):
    """Up to the peak during warmup, then straight down to 0."""

    kind: ClassVar[str] = "linear"


class Cosine(_Fixed):
    """Up to the peak during warmup, then down to 0 along a cosine."""

    kind: ClassVar[str] = "cosine"

    num_cycles: float = Field(default=0.5, gt=0.0, le=1e4, description="Waves of the cosine; 0.5 ends at 0.")


class CosineWithRestarts(_Fixed):
    """Up to the peak during warmup, then down to 0 along a cosine, several times over."""

    kind: ClassVar[str] = "cosine_with_restarts"

    num_cycles: Count = Field(default=1, description="How many times the rate goes down to 0.")


class CosineWithMinLR(_Fixed):
    """Up to the peak during warmup, then down to a lowest rate along a cosine."""

    kind: ClassVar[str] = "cosine_with_min_lr"

    num_cycles: float = Field(default=0.5, gt=0.0, le=1e4, description="Waves of the cosine; 0.5 ends lowest.")
    min_lr_rate: Share = Field(default=0.1, description="The lowest rate, as a share of the peak.")


class CosineWarmupWithMinLR(CosineWithMinLR):
    """As cosine_with_min_lr, and warmup too starts above 0."""

    kind: ClassVar[str] = "cosine_warmup_with_min_lr"

    warmup_lr_rate: Share | None = Field(
        default=None, description="The first rate, as a share of the peak; by default one step of the warmup."
    )


class Polynomial(_Fixed):
    """Up to the peak during warmup, then down along a power of the updates left."""

    kind: ClassVar[str] = "polynomial"

    power: float = Field(default=1.0, gt=0.0, le=100.0, description="The power; 1 is a straight line.")
    min_lr_rate: Share = Field(default=0.0, description="The last rate, as a share of the peak.")

    def _options(self, updates: int, warmup: int) -> dict[str, Any]:
        return {"power": self.power, "lr_end": self.min_lr_rate}


class InverseSqrt(_Fixed):
    """Up to the peak during warmup, then down with the square root of the update number."""

    kind: ClassVar[str] = "inverse_sqrt"

    timescale: Count | None = Field(
        default=None, description="Updates in which it falls to 0.7 of the peak; by default the warmup, or 10000."
    )


class Constant(_Fixed):
    """The peak, always."""

    kind: ClassVar[str] = "constant"

    @field_validator("warmup")
    @classmethod
    def _has_none(cls, warmup: int | float) -> int | float:
        if warmup:
            raise ValueError("'constant' has no warmup; name = \"constant_with_warmup\" has")
        return warmup


class ConstantWithWarmup(_Fixed):
    """Up to the peak during warmup, then the peak."""

    kind: ClassVar[str] = "constant_with_warmup"


class WarmupStableDecay(_Fixed):
    """Up during warmup, then the peak, then down over the last updates."""

    kind: ClassVar[str] = "warmup_stable_decay"

    decay: Count | Share = Field(
        default=0.1, description="The last updates, in which the rate goes down: a share of all, or a number."
    )
    warmup_type: Curve = Field(default="linear", description="The line on which it goes up.")
    decay_type: Curve = Field(default="cosine", description="The line on which it goes down.")
    min_lr_ratio: Share = Field(default=0.0, description="The first and last rate, as a share of the peak.")
    num_cycles: float = Field(default=0.5, gt=0.0, le=1e4, description="Waves of the cosine; 0.5 ends lowest.")

    def _options(self, updates: int, warmup: int) -> dict[str, Any]:
        decay = updates_in(self.decay, updates)
        if warmup + decay > updates:
            raise UsageError(
                f"[schedule]: warmup of {warmup} updates and decay of {decay} do not fit into a run of {updates}"
            )
        options = super()._options(updates, warmup) | {"num_decay_steps": decay}
        del options["decay"]
        return options


class _Followed(Schedule):
    """A schedule that follows the metric which decides the best checkpoint."""

    kind: ClassVar[str]
    """What transformers calls it."""

    def build(self, updates: int, warmup: int) -> MetricRate:
        """Return a rate that transformers' scheduler moves at each evaluation."""
        _require_peak(updates, warmup)
        return Followed(self.kind, self._options(), warmup)

    def _options(self) -> dict[str, Any]:
        raise NotImplementedError


class ReduceOnPlateau(_Followed):
    """The peak, lowered whenever evaluations have not been better for a while."""

    kind: ClassVar[str] = "reduce_lr_on_plateau"

    factor: Factor = Field(default=0.1, description="What the rate is multiplied by.")
    patience: Evaluations = Field(default=10, description="Evaluations without a better one that are let pass.")
    threshold: float = Field(default=1e-4, ge=0.0, le=1e10, description="By how much an evaluation must be better.")
    cooldown: Evaluations = Field(default=0, description="Evaluations that are not counted after a change.")
    min_lr_rate: Share = Field(default=0.0, description="The lowest rate, as a share of the peak.")

    def _options(self) -> dict[str, Any]:
        own = self.model_dump(include={"factor", "patience", "threshold", "cooldown"})
        # A relative threshold has the wrong sign for metrics that are better when higher: those come negated.
        return own | {"threshold_mode": "abs", "min_lr": self.min_lr_rate}


class Greedy(_Followed):
    """A rate that is raised while evaluations get better and lowered while they do not (GreedyLR)."""

    kind: ClassVar[str] = "greedy"

    factor: Factor = Field(default=0.95, description="What the rate is multiplied by, or divided by to raise it.")
    patience: Evaluations = Field(default=10, description="Evaluations of one kind in a row that are let pass.")
    threshold: float = Field(default=1e-6, ge=0.0, le=1e10, description="By how much an evaluation must be better.")
    cooldown: Evaluations = Field(default=0, description="Evaluations that are not counted after it was lowered.")
    growth_cooldown: Evaluations = Field(default=0, description="Evaluations that are not counted after it was raised.")
    min_lr_rate: Share = Field(default=0.01, description="The lowest rate, as a share of [train].learning_rate.")
    max_lr_rate: float = Field(default=10.0, ge=1.0, le=1e6, description="The highest, as a multiple of it.")
    reset_after: Count = Field(default=500, description="Times at the lowest rate after which it starts anew.")

    def _options(self) -> dict[str, Any]:
        own = self.model_dump(include={"factor", "patience", "threshold", "cooldown"})
        bounds = {"min_lr": self.min_lr_rate, "max_lr": self.max_lr_rate}
        return own | bounds | {"warmup": self.growth_cooldown, "reset_start": self.reset_after}


class Followed(MetricRate):
    """Runs a scheduler of transformers on evaluations; its state is what it observed, and a resumed run replays it."""

    def __init__(self, kind: str, options: Mapping[str, Any], warmup: int) -> None:
        self._kind, self._options, self._warmup = kind, dict(options), warmup
        self._start()

    def _start(self) -> None:
        from transformers import get_scheduler

        self._peak = _peak_of_one()
        self._scheduler: Any = get_scheduler(self._kind, self._peak, scheduler_specific_kwargs=self._options)
        self._observed: list[float | None] = []

    def __call__(self, update: int) -> float:
        """The scheduler's rate, under a straight warmup."""
        rate: float = self._peak.param_groups[0]["lr"]
        return rate * min(1.0, update / self._warmup) if self._warmup else rate

    def observe(self, value: float) -> None:
        """Let the scheduler see an evaluation; one that is not finite is no better than any."""
        finite = value if math.isfinite(value) else None
        self._observed.append(finite)
        self._scheduler.step(math.nan if finite is None else finite)

    def state(self) -> dict[str, Any]:
        """Return every evaluation so far."""
        return {"observed": list(self._observed)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Start over, and observe the same evaluations again."""
        self._start()
        for value in state["observed"]:
            self.observe(math.nan if value is None else value)
