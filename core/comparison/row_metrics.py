"""Metrics of a split as functions of its rows, so that predictions of two runs can be swapped row by row.

A metric is a mean over rows (`score.<metric>`, `loss`, `correct`), a function of class labels (f1, …), or of numbers
(pearson, …). Evidence doesn't say which. A metric is recognized by computing it again: only if that gives the number
that the run recorded, it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from taskrecipe.comparison.statistics import RESAMPLES, Numbers, Swaps, sign_flip_p_value, swap_p_value

Labels = NDArray[np.int64]
MOST_RANKED, FEWEST_RANKINGS = 10_000_000, 499
"""Numbers that are ranked for Spearman's correlation over all patterns of swaps, and the fewest patterns."""
FEW_CLASSES = 16
"""Up to so many classes, a dense matrix is faster than a sparse one."""


class Paired(Protocol):
    """A metric of two runs on the same rows."""

    def values(self) -> tuple[float, float]:
        """Return the metric of each run, computed from the rows."""

    def p_value(self) -> float:
        """Return the p-value of the difference under random swaps of rows."""


@dataclass(frozen=True)
class RowMeans:
    """A metric that is the mean of one number a row."""

    first: Numbers
    second: Numbers

    def values(self) -> tuple[float, float]:
        """Return the mean of each run."""
        return float(self.first.mean()), float(self.second.mean())

    def p_value(self) -> float:
        """Return the p-value of the mean difference."""
        return sign_flip_p_value(self.second - self.first)


@dataclass(frozen=True)
class ClassCounts:
    """What metrics of class labels are computed from: counts for each class, for one or many patterns of swaps."""

    right: Numbers
    """Rows of a class that are predicted as that class."""
    predicted: Numbers
    """Rows that are predicted as a class."""
    actual: Numbers
    """Rows of a class."""


LabelMetric = Callable[[ClassCounts], Numbers]


def accuracy(counts: ClassCounts) -> Numbers:
    """Return the share of rows that are right."""
    return _as_numbers(counts.right.sum(-1) / counts.actual.sum())


def class_f1(counts: ClassCounts) -> Numbers:
    """Return the F1 of every class; 0 for a class that neither occurs nor is predicted."""
    whole = counts.predicted + counts.actual
    return _as_numbers(2 * counts.right / np.where(whole == 0, 1, whole))


def macro_f1(counts: ClassCounts) -> Numbers:
    """Return the mean F1 over classes."""
    return _as_numbers(class_f1(counts).mean(-1))


def matthews_correlation(counts: ClassCounts) -> Numbers:
    """Return Matthews' correlation; 0 where it is undefined."""
    rows = counts.actual.sum()
    covariance = counts.right.sum(-1) * rows - (counts.predicted * counts.actual).sum(-1)
    spread = (rows**2 - (counts.predicted**2).sum(-1)) * (rows**2 - (counts.actual**2).sum())
    return _as_numbers(covariance / np.sqrt(np.where(spread > 0, spread, np.inf)))


def f1_of(label: int) -> LabelMetric:
    """Return the metric that is the F1 of one class."""
    return lambda counts: class_f1(counts)[..., label]


@dataclass(frozen=True)
class LabelPairs:
    """A metric of class labels: those that are right, and those that two runs predict."""

    metric: LabelMetric
    actual: Labels
    first: Labels
    second: Labels
    classes: int

    def values(self) -> tuple[float, float]:
        """Return the metric of each run."""
        one, other = (float(self.metric(self._count(predicted))) for predicted in (self.first, self.second))
        return one, other

    def p_value(self) -> float:
        """Return the p-value of the difference. Only rows on which the runs disagree can be swapped."""
        first, second = self._count(self.first), self._count(self.second)
        moved = self.first != self.second
        right = self._change(moved, only_right=True)
        predicted = self._change(moved, only_right=False)

        def statistic(swaps: Swaps) -> Numbers:
            numbers = swaps.astype(np.float64)
            moved_right, moved_predicted = numbers @ right, numbers @ predicted
            changed = (
                ClassCounts(counts.right + sign * moved_right, counts.predicted + sign * moved_predicted, counts.actual)
                for sign, counts in ((1, first), (-1, second))
            )
            one, other = map(self.metric, changed)
            return other - one

        observed = float(self.metric(second) - self.metric(first))
        return swap_p_value(statistic, observed, int(moved.sum()), 1.0)

    def _count(self, predicted: Labels) -> ClassCounts:
        def count(labels: Labels) -> Numbers:
            return np.bincount(labels, minlength=self.classes).astype(np.float64)

        return ClassCounts(count(predicted[predicted == self.actual]), count(predicted), count(self.actual))

    def _change(self, moved: NDArray[np.bool_], *, only_right: bool) -> Numbers:
        """Return for each row that can be swapped how that changes the counts of the first run, class by class."""
        from scipy.sparse import csr_array

        actual, rows = self.actual[moved], np.arange(int(moved.sum()))
        change = csr_array((len(rows), self.classes), dtype=np.float64)
        for labels, sign in ((self.second[moved], 1.0), (self.first[moved], -1.0)):
            weight = np.where(labels == actual, sign, 0.0) if only_right else np.full(len(rows), sign)
            change = change + csr_array((weight, (rows, labels)), shape=change.shape)
        return change.toarray() if self.classes <= FEW_CLASSES else change  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PearsonPairs:
    """Pearson's correlation between the right numbers and those that two runs predict."""

    actual: Numbers
    first: Numbers
    second: Numbers

    def values(self) -> tuple[float, float]:
        """Return the correlation of each run."""
        one, other = (float(correlate_rows(self.actual, values)) for values in (self.first, self.second))
        return one, other

    def p_value(self) -> float:
        """Return the p-value of the difference. All that a swap changes are three sums of each run."""
        actual = self.actual - self.actual.mean()
        middle = (self.first + self.second).mean() / 2  # small numbers lose no digits when they are squared
        first, second = (_moments(values - middle, actual) for values in (self.first, self.second))
        totals, change = (first.sum(0), second.sum(0)), second - first

        def correlate(sums: Numbers) -> Numbers:
            mean, square, product = sums[:, 0] / len(actual), sums[:, 1], sums[:, 2]
            spread = (square - len(actual) * mean**2) * (actual @ actual)
            return product / np.sqrt(np.where(spread > 0, spread, np.inf))

        def statistic(swaps: Swaps) -> Numbers:
            moved = swaps.astype(np.float64) @ change
            return correlate(totals[1] - moved) - correlate(totals[0] + moved)

        one, other = self.values()
        return swap_p_value(statistic, other - one, len(actual), 1.0)


@dataclass(frozen=True)
class SpearmanPairs:
    """Spearman's correlation between the right numbers and those that two runs predict."""

    actual: Numbers
    first: Numbers
    second: Numbers

    def values(self) -> tuple[float, float]:
        """Return the correlation of each run."""
        one, other = (float(self._correlate(values)) for values in (self.first, self.second))
        return one, other

    def p_value(self) -> float:
        """Return the p-value of the difference. Every pattern of swaps needs new ranks, so there are fewer."""
        rows = len(self.actual)
        resamples = min(RESAMPLES, max(FEWEST_RANKINGS, MOST_RANKED // rows))

        def statistic(swaps: Swaps) -> Numbers:
            swapped = swaps.astype(bool)
            first = np.where(swapped, self.second, self.first)
            return self._correlate(np.where(swapped, self.first, self.second)) - self._correlate(first)

        one, other = self.values()
        return swap_p_value(statistic, other - one, rows, 1.0, resamples)

    def _correlate(self, values: Numbers) -> Numbers:
        from scipy.stats import rankdata

        return correlate_rows(rankdata(self.actual), rankdata(values, axis=-1))


def correlate_rows(actual: Numbers, values: Numbers) -> Numbers:
    """Return Pearson's correlation of each line of `values` with `actual`; 0 for a constant."""
    actual = actual - actual.mean()
    values = values - values.mean(-1, keepdims=True)
    spread = (values**2).sum(-1) * (actual @ actual)
    return _as_numbers((values @ actual) / np.sqrt(np.where(spread > 0, spread, np.inf)))


def _moments(values: Numbers, actual: Numbers) -> Numbers:
    return np.stack([values, values**2, values * actual], axis=1)


CORRELATIONS: dict[str, type[PearsonPairs] | type[SpearmanPairs]] = {
    "pearson": PearsonPairs,
    "spearman": SpearmanPairs,
}
"""Metrics of numbers, by name."""


def label_metrics(name: str, classes: int) -> Sequence[LabelMetric]:
    """Return the functions of labels that a metric may be. For `f1`, that of each class, the last class first."""
    known: dict[str, LabelMetric] = {
        "accuracy": accuracy,
        "macro_f1": macro_f1,
        "matthews_correlation": matthews_correlation,
    }
    if name == "f1":
        return [f1_of(label) for label in reversed(range(classes))] if classes <= FEW_CLASSES else []
    return [known[name]] if name in known else []


def _as_numbers(values: object) -> Numbers:
    return np.asarray(values, dtype=np.float64)
