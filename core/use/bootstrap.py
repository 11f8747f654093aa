"""The bootstrap: metrics on rows that are drawn again with replacement, and the intervals that follow from them.

The k-th resample of n rows is the same for every run and machine. So the difference of two runs on the same rows,
resample by resample, is a paired bootstrap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from taskrecipe.recipe import Scorer

Column = np.ndarray[Any, Any]

SEED = 0x626F6F74
"""Keeps these draws apart from all others."""

MOST_SECONDS = 10.0
"""Time after which no further resample is begun: metrics that are slow to compute get fewer of them."""

MOST_DRAWS = 20_000_000
"""Rows that are drawn in all: large splits get fewer resamples, and need fewer."""

FEWEST_RESAMPLES = 50
"""With fewer resamples than this, the ends of an interval would be chance."""

SHARE = 0.95


def draw_resample(rows: int, number: int) -> Column:
    """Return the rows of the resample with this number, from 0 on."""
    return np.random.default_rng([SEED, rows, number]).integers(0, rows, rows)


def count_resamples(rows: int, most: int) -> int:
    """Return how many resamples of a split are made, if there is time for them."""
    return min(most, max(2 * FEWEST_RESAMPLES, MOST_DRAWS // max(rows, 1)))


def resample_metrics(scorer: Scorer, rows: int, most: int, seconds: float = MOST_SECONDS) -> dict[str, Column]:
    """Return the values of each metric on the first resamples, as many as there is time for."""
    end, found = time.monotonic() + seconds, []
    for number in range(count_resamples(rows, most) if rows > 1 else 0):
        found.append(scorer(draw_resample(rows, number)))
        if time.monotonic() > end:
            break
    names = dict.fromkeys(name for metrics in found for name in metrics)
    return {name: np.array([metrics.get(name, math.nan) for metrics in found], dtype=np.float64) for name in names}


def find_intervals(resampled: Mapping[str, Column]) -> dict[str, tuple[float, float]]:
    """Return the 95 % interval of each metric that enough resamples have a value of."""
    intervals = {}
    for name, values in resampled.items():
        finite = values[np.isfinite(values)]
        if len(finite) >= max(FEWEST_RESAMPLES, len(values) / 2):
            low, high = np.quantile(finite, [(1 - SHARE) / 2, (1 + SHARE) / 2])
            intervals[name] = (float(low), float(high))
    return intervals


def score_loss(sums: Column, counts: Column) -> Scorer:
    """Return a scorer of the loss: the mean over all items of the chosen rows."""

    def score(chosen: Column) -> dict[str, float]:
        items = counts[chosen].sum()
        return {"loss": float(sums[chosen].sum() / items) if items else math.nan}

    return score
