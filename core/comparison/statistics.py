"""Statistics of a difference between two runs: intervals by bootstrap or over seeds, and permutation p-values.

Two runs that were evaluated on the same rows are compared row by row, which removes the variation that the rows
themselves bring in. Their bootstrap files hold metrics of the same resamples of rows, so the difference of two columns
is a paired bootstrap. A permutation test swaps the two runs' predictions of random rows: if the runs were equally good,
that would change nothing. With few rows to swap, every pattern of swaps is tried, and the p-value is exact.

All functions work on whole arrays. Patterns of swaps come in blocks, so that memory stays small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Swaps = NDArray[np.uint8]
"""Patterns of swaps, one a line: 1 where the predictions of a row are swapped."""

CONFIDENCE = 0.95
RESAMPLES = 9999
"""Random patterns of swaps. The smallest p-value is then 0.0001."""
FEWEST_RESAMPLES = 50
"""With fewer bootstrap resamples than this, the ends of an interval would be chance."""
BLOCK = 4_000_000
"""Elements of a block of patterns."""
_SEED = 0x7065726D
_ROUNDING = 1e-11
"""Share of a statistic within which two values count as equal: sums in another order differ in the last digits."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether all of the interval is on one side of zero."""
        return self.low > 0 or self.high < 0


def paired_interval(first: Numbers, second: Numbers, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of `second - first` from metrics on the same resamples of the same rows."""
    count = min(len(first), len(second))
    return percentile_interval(second[:count] - first[:count], confidence)


def unpaired_interval(first: Numbers, second: Numbers, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval of `second - first` from metrics on resamples of different rows."""
    count = min(len(first), len(second))
    # Resample k draws the same row numbers in both runs. They are different rows, so no resample may meet itself.
    return percentile_interval(np.roll(second[:count], count // 2) - first[:count], confidence)


def percentile_interval(values: Numbers, confidence: float = CONFIDENCE) -> Interval | None:
    """Return the interval between two percentiles; None if too few resamples have a value."""
    finite = values[np.isfinite(values)]
    if len(finite) < FEWEST_RESAMPLES or 2 * len(finite) < len(values):
        return None
    low, high = np.quantile(finite, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high))


# Permutations ---------------------------------------------------------------------------------------


def sign_flip_p_value(differences: Numbers, resamples: int = RESAMPLES) -> float:
    """Return the two-sided p-value of the mean of paired differences: how often random signs give a larger one."""
    moved = differences[differences != 0]  # the others stay the same with any sign
    total = float(moved.sum())
    scale = float(np.abs(moved).sum())
    return swap_p_value(lambda swaps: total - 2 * (swaps @ moved), total, len(moved), scale, resamples)


def swap_p_value(
    statistic: Callable[[Swaps], Numbers], observed: float, rows: int, scale: float, resamples: int = RESAMPLES
) -> float:
    """Return how often a statistic is as far from 0 as `observed`, if the predictions of random rows are swapped.

    `statistic` takes patterns of swaps of `rows` rows. `scale` is the size of the numbers that it adds up.
    """
    limit = abs(observed) - _ROUNDING * max(scale, abs(observed))
    hits = sum(int(np.count_nonzero(np.abs(statistic(swaps)) >= limit)) for swaps in iterate_swaps(rows, resamples))
    return hits / 2**rows if _has_few_patterns(rows, resamples) else (hits + 1) / (resamples + 1)


def iterate_swaps(rows: int, resamples: int = RESAMPLES) -> Iterator[Swaps]:
    """Yield patterns of swaps in blocks: all patterns if there are few, else random ones, always the same."""
    size = max(1, BLOCK // max(rows, 1))
    if _has_few_patterns(rows, resamples):
        for start in range(0, 2**rows, size):
            numbers = np.arange(start, min(start + size, 2**rows), dtype=np.int64)
            yield ((numbers[:, None] >> np.arange(rows)) & 1).astype(np.uint8)
        return
    random = np.random.default_rng([_SEED, rows])
    for start in range(0, resamples, size):
        count = min(size, resamples - start)
        bits = random.integers(0, 256, (count, math.ceil(rows / 8)), dtype=np.uint8)
        yield np.unpackbits(bits, axis=1, count=rows)


def _has_few_patterns(rows: int, resamples: int) -> bool:
    """Whether trying all patterns takes no longer than random ones."""
    return rows < 63 and 2**rows <= resamples + 1


# Seeds ----------------------------------------------------------------------------------------------


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval | None:
    """Return the t interval of a mean over seeds; None for fewer than two."""
    from scipy import stats

    if len(values) < 2:
        return None
    mean, spread = float(np.mean(values)), _standard_error(values)
    if spread == 0:  # every seed gives the same number
        return Interval(mean, mean)
    return _as_interval(stats.t.interval(confidence, len(values) - 1, mean, spread))


def seeds_interval(
    first: Sequence[float], second: Sequence[float], *, paired: bool, confidence: float = CONFIDENCE
) -> tuple[Interval, float] | None:
    """Return the t interval of the difference of two means over seeds, and its p-value.

    `paired` means that both were trained with the same seeds, in the same order. Else it is Welch's interval. None if
    a side has fewer than two seeds.
    """
    from scipy import stats

    if len(first) < 2 or len(second) < 2:
        return None
    change = float(np.mean(second) - np.mean(first))
    if paired:
        spread, freedom = _standard_error(np.subtract(second, first)), float(len(first) - 1)
    else:
        errors = [_standard_error(values) ** 2 for values in (first, second)]
        spread = math.sqrt(sum(errors))
        freedom = _welch_freedom(errors, (len(first), len(second)))
    if spread == 0:
        return Interval(change, change), 1.0 if change == 0 else 0.0
    return _as_interval(stats.t.interval(confidence, freedom, change, spread)), float(
        2 * stats.t.sf(abs(change) / spread, freedom)
    )


def _welch_freedom(errors: Sequence[float], counts: Sequence[int]) -> float:
    parts = sum(error**2 / (count - 1) for error, count in zip(errors, counts, strict=True))
    return sum(errors) ** 2 / parts if parts else 1.0


def _standard_error(values: Sequence[float] | Numbers) -> float:
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


def _as_interval(found: tuple[float, float]) -> Interval:
    return Interval(float(found[0]), float(found[1]))
