"""Scales of charts: ranges, round ticks, and which pixel a value is at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Scale:
    """Maps values from `low` to `high` to pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        return self.start + ((math.log10(value) if self.log else value) - low) / (high - low) * (self.end - self.start)


def fit_range(values: Iterable[float], bounds: tuple[float, float] | None = None) -> tuple[float, float]:
    """Return a range that holds all values, with a little room, and at least `bounds`."""
    found = [*values, *(bounds or ())]
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if low == high:
        room = abs(low) * 0.1 or 0.5
        return low - room, high + room
    room = (high - low) * 0.04
    within = bounds is not None and low >= bounds[0] and high <= bounds[1]
    if within:
        return low, high
    return (0.0 if 0 <= low <= room else low - room), high + room


def choose_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round numbers between `low` and `high`: steps of 1, 2 or 5 times a power of ten."""
    if not math.isfinite(high - low) or high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def choose_log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten between `low` and `high`; where they are few, also twice and five times of them."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        ticks = [f * 10.0**power for power in powers for f in factors if low * 0.999 <= f * 10.0**power <= high * 1.001]
        if len(ticks) > 2:
            break
    return ticks


def format_ticks(ticks: Sequence[float]) -> list[str]:
    """Write ticks with as many digits as tell them apart."""
    if not ticks:
        return []
    largest = max(abs(tick) for tick in ticks)
    if largest and (largest < 1e-3 or largest >= 1e7):
        return [f"{tick:.3g}" for tick in ticks]
    step = min((b - a for a, b in pairwise(ticks)), default=1.0)
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 2
    return [f"{tick:,.{digits}f}" for tick in ticks]
