"""The built-in schedules: the twelve of transformers, with the same values.

Their values are shares of the peak, `[train].learning_rate`, so that a spec stays correct when the peak changes. Those
that depend on the update number alone are written out here: transformers imports peft for them where it is installed,
which takes a second of every start.

Annotations are not strings in this module (no `from __future__ import annotations`): pydantic would evaluate each of
them for every subclass, and commands would start slower.
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from taskrecipe.errors import UsageError
from taskrecipe.plugins.kinds import MetricLrFactor, Schedule
from taskrecipe.spec.table import LARGEST, Count, Share

if TYPE_CHECKING:
    import torch

Factor = Annotated[float, Field(gt=0.0, lt=1.0)]
Evaluations = Annotated[int, Field(ge=0, le=LARGEST)]
Curve = Literal["linear", "cosine", "1-sqrt"]


def length_in_updates(length: int | float, updates: int) -> int:
    """Return a length as a number of updates. It is given as that number, or as a share of all `updates`."""
    if isinstance(length, int):
        return length
    # 0.07 * 100 is slightly more than 7; that must not become 8 updates.
    return math.ceil(round(length * updates, 6))


class _UpdateSchedule(Schedule):
    """A schedule that depends on the update number alone: a linear warmup, then a decay."""

    @override
    def build(self, updates: int, warmup: int) -> Callable[[int], float]:
        _require_peak(updates, warmup)
        return lambda update: self._warm_up(update, warmup) if update < warmup else self._decay(update, updates, warmup)

    def _warm_up(self, update: int, warmup: int) -> float:
        return update / warmup

    def _decay(self, update: int, updates: int, warmup: int) -> float:
        raise NotImplementedError


def _cosine(share: float, cycles: float, lowest: float = 0.0) -> float:
    """Return the value of a cosine that decays from 1 to `lowest`, after a share of all its `cycles`."""
    value = 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * share))
    return max(0.0, value * (1.0 - lowest) + lowest)


def _require_peak(updates: int, warmup: int) -> None:
    if warmup >= updates:
        raise UsageError(
            f"[schedule].warmup is {warmup} updates, and the whole run has {updates}: the learning rate would "
            f"never reach its peak; use a shorter warmup, or a share such as 0.1"
        )


def _unit_optimizer() -> "torch.optim.Optimizer":
    """Make an optimizer with learning rate 1. The schedulers of transformers read the peak from one."""
    import torch

    return torch.optim.SGD([torch.zeros(1)], lr=1.0)


class Linear(_UpdateSchedule):
    """Warmup to the peak, then linear decay to 0."""

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        return max(0.0, (updates - update) / (updates - warmup))


class Cosine(_UpdateSchedule):
    """Warmup to the peak, then cosine decay to 0."""

    num_cycles: float = Field(default=0.5, gt=0.0, le=1e4, description="Periods of the cosine; 0.5 ends at 0.")

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        return _cosine((update - warmup) / (updates - warmup), self.num_cycles)


class CosineWithRestarts(_UpdateSchedule):
    """Warmup to the peak, then cosine decay to 0 that restarts several times."""

    num_cycles: Count = Field(default=1, description="How many times the learning rate decays to 0.")

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        share = (update - warmup) / (updates - warmup)
        return _cosine((self.num_cycles * share) % 1.0, 0.5) if share < 1.0 else 0.0


class CosineWithMinLR(_UpdateSchedule):
    """Warmup to the peak, then cosine decay to a minimum."""

    num_cycles: float = Field(default=0.5, gt=0.0, le=1e4, description="Periods of the cosine; 0.5 ends lowest.")
    min_lr_rate: Share = Field(default=0.1, description="The lowest learning rate, as a share of the peak.")

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        return _cosine((update - warmup) / (updates - warmup), self.num_cycles, self.min_lr_rate)


class CosineWarmupWithMinLR(CosineWithMinLR):
    """Like cosine_with_min_lr, but warmup starts above 0."""

    warmup_lr_rate: Share | None = Field(
        default=None, description="The first learning rate, as a share of the peak; by default one step of the warmup."
    )

    @override
    def _warm_up(self, update: int, warmup: int) -> float:
        if self.warmup_lr_rate is None:
            return (update + 1) / warmup
        return self.warmup_lr_rate + (1.0 - self.warmup_lr_rate) * update / max(1, warmup - 1)

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        return super()._decay(update + 1, updates, warmup)


class Polynomial(_UpdateSchedule):
    """Warmup to the peak, then polynomial decay."""

    power: float = Field(default=1.0, gt=0.0, le=100.0, description="The exponent; 1 is linear.")
    min_lr_rate: Share = Field(default=0.0, description="The last learning rate, as a share of the peak.")

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        remaining = max(0.0, 1 - (update - warmup) / (updates - warmup))
        return (1.0 - self.min_lr_rate) * math.pow(remaining, self.power) + self.min_lr_rate


class InverseSqrt(_UpdateSchedule):
    """Warmup to the peak, then decay by the inverse square root of the update number."""

    timescale: Count | None = Field(
        default=None, description="Updates after which it is 0.7 of the peak; by default the warmup, or 10000."
    )

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        timescale = self.timescale or warmup or 10_000
        return 1.0 / math.sqrt((update - warmup + timescale) / timescale)


class Constant(_UpdateSchedule):
    """Always the peak."""

    @override
    def _warm_up(self, update: int, warmup: int) -> float:
        return 1.0

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        return 1.0

    @field_validator("warmup")
    @classmethod
    def _has_none(cls, warmup: int | float) -> int | float:
        if warmup:
            raise ValueError("'constant' has no warmup; name = \"constant_with_warmup\" has")
        return warmup


class ConstantWithWarmup(_UpdateSchedule):
    """Warmup to the peak, which then stays."""

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        return 1.0


class WarmupStableDecay(_UpdateSchedule):
    """Warmup to the peak, which stays until a decay over the last updates."""

    decay: Count | Share = Field(
        default=0.1, description="The length of the decay: a share of all updates, or an integer number of updates."
    )
    warmup_type: Curve = Field(default="linear", description="The curve of the warmup.")
    decay_type: Curve = Field(default="cosine", description="The curve of the decay.")
    min_lr_ratio: Share = Field(default=0.0, description="The first and last learning rate, as a share of the peak.")
    num_cycles: float = Field(default=0.5, gt=0.0, le=1e4, description="Periods of the cosine; 0.5 ends lowest.")

    @override
    def build(self, updates: int, warmup: int) -> Callable[[int], float]:
        decay = length_in_updates(self.decay, updates)
        if warmup + decay > updates:
            raise UsageError(
                f"[schedule]: warmup of {warmup} updates and decay of {decay} do not fit into a run of {updates}"
            )
        return super().build(updates, warmup)

    @override
    def _warm_up(self, update: int, warmup: int) -> float:
        share = update / warmup
        rising = {
            "linear": share,
            "cosine": 0.5 * (1.0 - math.cos(math.pi * share)),
            "1-sqrt": 1.0 - math.sqrt(1.0 - share),
        }
        return self._lift(rising[self.warmup_type])

    @override
    def _decay(self, update: int, updates: int, warmup: int) -> float:
        length = length_in_updates(self.decay, updates)
        share = (update - (updates - length)) / max(1, length)
        if share < 0.0:
            return 1.0
        falling = {
            "linear": 1.0 - share,
            "cosine": _cosine(share, self.num_cycles),
            "1-sqrt": 1.0 - math.sqrt(share),
        }
        return self._lift(falling[self.decay_type]) if share < 1.0 else self.min_lr_ratio

    def _lift(self, value: float) -> float:
        return value * (1.0 - self.min_lr_ratio) + self.min_lr_ratio


class _MetricSchedule(Schedule):
    """A schedule that follows the metric that decides the best checkpoint, computed by transformers."""

    kind: ClassVar[str]
    """Its name in transformers."""

    @override
    def build(self, updates: int, warmup: int) -> MetricLrFactor:
        _require_peak(updates, warmup)
        return SchedulerLrFactor(self.kind, self._options(), warmup)

    def _options(self) -> dict[str, Any]:
        raise NotImplementedError


class ReduceOnPlateau(_MetricSchedule):
    """The peak, reduced when the metric has not improved for some evaluations."""

    kind: ClassVar[str] = "reduce_lr_on_plateau"

    factor: Factor = Field(default=0.1, description="Factor by which the learning rate is reduced.")
    patience: Evaluations = Field(default=10, description="Evaluations without improvement that are allowed.")
    threshold: float = Field(default=1e-4, ge=0.0, le=1e10, description="The smallest improvement that counts.")
    cooldown: Evaluations = Field(default=0, description="Evaluations that don't count after a change.")
    min_lr_rate: Share = Field(default=0.0, description="The lowest learning rate, as a share of the peak.")

    def _options(self) -> dict[str, Any]:
        own = self.model_dump(include={"factor", "patience", "threshold", "cooldown"})
        # A relative threshold has the wrong sign for metrics that are better when higher: those come negated.
        return own | {"threshold_mode": "abs", "min_lr": self.min_lr_rate}


class Greedy(_MetricSchedule):
    """A learning rate that increases while the metric improves and decreases while it does not (GreedyLR)."""

    kind: ClassVar[str] = "greedy"

    factor: Factor = Field(default=0.95, description="Factor of a decrease; its inverse is the factor of an increase.")
    patience: Evaluations = Field(default=10, description="Evaluations in a row, better or not, before a change.")
    threshold: float = Field(default=1e-6, ge=0.0, le=1e10, description="The smallest improvement that counts.")
    cooldown: Evaluations = Field(default=0, description="Evaluations that don't count after a decrease.")
    growth_cooldown: Evaluations = Field(default=0, description="Evaluations that don't count after an increase.")
    min_lr_rate: Share = Field(default=0.01, description="The lowest learning rate, as a share of the peak.")
    max_lr_rate: float = Field(default=10.0, ge=1.0, le=1e6, description="The highest, as a multiple of the peak.")
    reset_after: Count = Field(default=500, description="Times at the lowest rate before the schedule restarts.")

    def _options(self) -> dict[str, Any]:
        own = self.model_dump(include={"factor", "patience", "threshold", "cooldown"})
        bounds = {"min_lr": self.min_lr_rate, "max_lr": self.max_lr_rate}
        return own | bounds | {"warmup": self.growth_cooldown, "reset_start": self.reset_after}


class SchedulerLrFactor(MetricLrFactor):
    """Runs a scheduler of transformers on evaluations. Its state is the list of them, which a resumed run replays."""

    def __init__(self, kind: str, options: Mapping[str, Any], warmup: int) -> None:
        self._kind, self._options, self._warmup = kind, dict(options), warmup
        self._start()

    def _start(self) -> None:
        from taskrecipe.system.library_output import quiet_libraries

        with quiet_libraries("bitsandbytes"):  # where peft is installed, transformers imports both here
            from transformers import get_scheduler

        self._peak = _unit_optimizer()
        self._scheduler: Any = get_scheduler(self._kind, self._peak, scheduler_specific_kwargs=self._options)
        self._observed: list[float | None] = []

    @override
    def __call__(self, update: int) -> float:
        rate: float = self._peak.param_groups[0]["lr"]
        return rate * min(1.0, update / self._warmup) if self._warmup else rate

    @override
    def observe(self, value: float) -> None:
        # Not finite means no better than any. JSON has no NaN, so None stands for it.
        finite = value if math.isfinite(value) else None
        self._observed.append(finite)
        self._scheduler.step(math.nan if finite is None else finite)

    @override
    def state(self) -> dict[str, Any]:
        return {"observed": list(self._observed)}

    @override
    def restore(self, state: Mapping[str, Any]) -> None:
        self._start()
        for value in state["observed"]:
            self.observe(math.nan if value is None else value)
