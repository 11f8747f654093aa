"""Rows that a second run gets right and a first one wrong, and the other way round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskrecipe.comparison.evidence import Evidence
from taskrecipe.comparison.statistics import Numbers
from taskrecipe.recipe import Direction

Change = Literal["fixed", "broken"]


@dataclass(frozen=True)
class ChangedRow:
    """A row whose prediction became right or wrong, or much better or worse."""

    change: Change
    row: int
    source: str | None
    input: Any
    reference: Any
    first: Any
    """What the first run predicts."""
    second: Any


@dataclass(frozen=True)
class RowChanges:
    """How the predictions of a split changed from the first run to the second."""

    split: str
    measure: str
    """`correct`; or where rows are not right or wrong, the column of the row's score: then fixed means better."""
    rows: int
    fixed: int
    broken: int
    unchanged: int
    examples: tuple[ChangedRow, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the changes as JSON values."""
        return {**asdict(self), "examples": [asdict(example) for example in self.examples]}


def find_row_changes(
    first: Evidence, second: Evidence, most: int, scores: Mapping[str, Direction]
) -> RowChanges | None:
    """Compare two runs' predictions of the same rows; None where no row can be judged.

    `most` examples of each kind are kept: of rows that are right or wrong the first ones, else those that changed
    most. `scores` are the metrics to judge by where rows are not right or wrong, and which way each is better.
    """
    _, ours, theirs = np.intersect1d(first.row_numbers, second.row_numbers, assume_unique=True, return_indices=True)
    for measure, gain in _gains(first, second, ours, theirs, scores):
        fixed, broken = np.flatnonzero(gain > 0), np.flatnonzero(gain < 0)
        if measure != "correct":
            fixed, broken = (places[np.argsort(-np.abs(gain[places]), kind="stable")] for places in (fixed, broken))
        examples = [
            *_read_examples("fixed", first, second, ours[fixed[:most]], theirs[fixed[:most]]),
            *_read_examples("broken", first, second, ours[broken[:most]], theirs[broken[:most]]),
        ]
        known = int(np.count_nonzero(np.isfinite(gain)))
        counts = len(fixed), len(broken), known - len(fixed) - len(broken)
        return RowChanges(first.split, measure, known, *counts, tuple(examples))
    return None


def _gains(
    first: Evidence,
    second: Evidence,
    ours: NDArray[np.int64],
    theirs: NDArray[np.int64],
    scores: Mapping[str, Direction],
) -> Iterator[tuple[str, Numbers]]:
    """Yield a measure of rows, and how much better each row became by it; NaN where that is not known."""
    if "correct" in first.columns & second.columns:
        (one, known), (other, also_known) = first.read_flags("correct"), second.read_flags("correct")
        both = known[ours] & also_known[theirs]
        if both.any():
            yield "correct", np.where(both, other[theirs].astype(float) - one[ours], np.nan)
    for column, direction in {**{f"score.{name}": better for name, better in scores.items()}, "loss": "min"}.items():
        before, after = first.read_numbers(column), second.read_numbers(column)
        if before is not None and after is not None:
            yield column, (after[theirs] - before[ours]) * (1.0 if direction == "max" else -1.0)


def _read_examples(
    change: Change, first: Evidence, second: Evidence, ours: NDArray[np.int64], theirs: NDArray[np.int64]
) -> list[ChangedRow]:
    rows = [int(number) for number in first.row_numbers[ours]]
    sources = first.read("source").take(ours).to_pylist() if "source" in first.columns else [None] * len(rows)
    columns = (
        first.read_json("input", ours),
        first.read_json("reference", ours),
        first.read_json("prediction", ours),
        second.read_json("prediction", theirs),
    )
    return [ChangedRow(change, *values) for values in zip(rows, sources, *columns, strict=True)]
