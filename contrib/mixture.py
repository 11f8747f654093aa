"""Drawing the rows of an epoch from several tasks, in given proportions."""

from __future__ import annotations

from typing import Any

import numpy as np


def draw_mixture(
    numbers: np.ndarray[Any, Any], proportions: np.ndarray[Any, Any], random: np.random.Generator
) -> list[int]:
    """Return as many rows as there are; `numbers` has the task of each row, `proportions` a number for each task.

    Within a task no row comes twice before all have come.
    """
    counts = divide_proportionally(len(numbers), proportions)
    drawn = [_repeat_rows(np.flatnonzero(numbers == task), count, random) for task, count in enumerate(counts)]
    together: list[int] = np.concatenate(drawn).tolist()
    return together


def divide_proportionally(total: int, proportions: np.ndarray[Any, Any]) -> list[int]:
    """Return whole numbers that sum to `total`, closest to `proportions`; the largest fractions are rounded up."""
    exact = total * proportions / proportions.sum()
    counts = np.floor(exact).astype(int)
    rests = np.argsort(counts - exact, kind="stable")
    counts[rests[: total - counts.sum()]] += 1
    return [int(count) for count in counts]


def _repeat_rows(rows: np.ndarray[Any, Any], count: int, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return `count` of the rows: whole passes over all of them, and a part of one more."""
    rounds = [random.permutation(rows) for _ in range(-(-count // len(rows)))]
    return np.concatenate([*rounds, rows[:0]])[:count]
