"""The difference of each metric between two sides: its interval, its p-value, and what they mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taskrecipe.comparison.evidence import Evidence
from taskrecipe.comparison.row_metrics import CORRELATIONS, LabelPairs, Labels, Paired, RowMeans, label_metrics
from taskrecipe.comparison.sides import Side
from taskrecipe.comparison.statistics import Interval, Numbers, paired_interval, seeds_interval, unpaired_interval
from taskrecipe.recipe import Direction, reported_name

SIGNIFICANT = 0.05
SAME, CLOSE = 1e-6, 0.05
"""How near a metric that is computed again must come to the recorded one: of all rows, and of a part of them."""

Verdict = Literal["better", "worse", "higher", "lower", "no clear difference", "unknown"]


@dataclass(frozen=True)
class MetricDifference:
    """A metric of two sides."""

    metric: str
    direction: Direction | None
    first: float
    second: float
    interval: Interval | None = None
    """95 % interval of the difference."""
    p_value: float | None = None
    method: str | None = None
    """How the interval and the p-value were computed."""
    reason: str | None = None
    """Why the interval or the p-value is missing."""

    @property
    def difference(self) -> float:
        """Second minus first."""
        return self.second - self.first

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes zero and the p-value, where there is one, is below 0.05."""
        excluded = self.interval is not None and self.interval.excludes_zero
        return excluded and (self.p_value is None or self.p_value < SIGNIFICANT)

    @property
    def verdict(self) -> Verdict:
        """What the difference means for the second side."""
        if self.interval is None:
            return "unknown"
        if not self.is_significant:
            return "no clear difference"
        is_higher = self.difference > 0
        if self.direction is None:
            return "higher" if is_higher else "lower"
        return "better" if is_higher == (self.direction == "max") else "worse"

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        return {
            "metric": self.metric,
            "direction": self.direction,
            "first": self.first,
            "second": self.second,
            "difference": self.difference,
            "interval": [self.interval.low, self.interval.high] if self.interval else None,
            "p_value": self.p_value,
            "verdict": self.verdict,
            "method": self.method,
            "reason": self.reason,
        }


def compare_metrics(first: Side, second: Side, directions: dict[str, Direction]) -> list[MetricDifference]:
    """Compare every metric that both sides have. Sides of several seeds are compared over seeds, others over rows."""
    shared = [name for name in first.first.metrics if second.mean(name) is not None and first.mean(name) is not None]
    over_seeds = len(first.runs) > 1 or len(second.runs) > 1
    by_rows = {} if over_seeds else {found.metric: found for found in _compare_rows(first, second, directions)}
    compare = _compare_seeds if over_seeds else _compare_values
    return [by_rows.get(name) or compare(first, second, name, directions.get(name)) for name in shared]


def _compare_values(first: Side, second: Side, metric: str, direction: Direction | None) -> MetricDifference:
    reason = "not both runs have predictions for it"
    one, other = first.first.metrics[metric], second.first.metrics[metric]
    return MetricDifference(metric, direction, one, other, reason=reason)


def _compare_seeds(first: Side, second: Side, metric: str, direction: Direction | None) -> MetricDifference:
    one, other = first.seed_values(metric), second.seed_values(metric)
    paired = one.keys() == other.keys()
    values = list(one.values()), [other[seed] for seed in one] if paired else list(other.values())
    means = float(np.mean(values[0])), float(np.mean(values[1]))
    found = seeds_interval(*values, paired=paired)
    if found is None:
        alone = first.name if len(one) < 2 else second.name
        reason = f"{alone} has one seed: its spread is not known"
        return MetricDifference(metric, direction, *means, reason=reason)
    method = f"t interval over {len(one)} seeds, paired" if paired else f"Welch's t, {len(one)} and {len(other)} seeds"
    return MetricDifference(metric, direction, *means, found[0], found[1], method)


# Rows -----------------------------------------------------------------------------------------------


def _compare_rows(first: Side, second: Side, directions: dict[str, Direction]) -> Iterator[MetricDifference]:
    for split in first.first.evidence:
        one, other = first.evidence(split), second.evidence(split)
        if one is None or other is None:
            continue
        pair = RowPair(one, other)
        for metric in one.metrics:
            if metric in other.metrics:
                name = reported_name(split, metric)
                yield pair.compare_metric(metric, name, directions.get(name))


class RowPair:
    """The evidence of two runs on one split."""

    def __init__(self, first: Evidence, second: Evidence) -> None:
        self.first, self.second = first, second
        self.is_paired = first.data is not None and (first.data, first.rows) == (second.data, second.rows)
        _, self._first_rows, self._second_rows = np.intersect1d(
            first.row_numbers, second.row_numbers, assume_unique=True, return_indices=True
        )

    def compare_metric(self, metric: str, name: str, direction: Direction | None) -> MetricDifference:
        """Compare one metric of the split, which is reported as `name`."""
        values = float(self.first.metrics[metric]), float(self.second.metrics[metric])
        columns = self.first.bootstrap.get(metric), self.second.bootstrap.get(metric)
        if columns[0] is None or columns[1] is None:
            return MetricDifference(name, direction, *values, reason="it is not a function of single rows")
        if not self.is_paired:
            interval = unpaired_interval(columns[0], columns[1])
            method = f"bootstrap of {self.first.rows} and {self.second.rows} different rows"
            reason = "the rows differ: no p-value"
            return MetricDifference(name, direction, *values, interval, None, method, reason)
        interval = paired_interval(columns[0], columns[1])
        found = self._find_function(metric)
        if found is None:
            unknown = "no p-value: how the predictions of rows make up this metric is not known"
            return MetricDifference(name, direction, *values, interval, None, self._name_method(None), unknown)
        return MetricDifference(name, direction, *values, interval, found.p_value(), self._name_method(found))

    def _name_method(self, found: Paired | None) -> str:
        method = f"paired bootstrap of {self.first.rows} rows"
        if found is None:
            return method
        kept = len(self._first_rows)
        part = f" of {kept} kept rows" if kept < self.first.rows else ""
        return f"{method}, {'sign flips' if isinstance(found, RowMeans) else 'swaps'}{part}"

    def _find_function(self, metric: str) -> Paired | None:
        """Return the metric as a function of rows: the first that gives the recorded values."""
        if not len(self._first_rows):
            return None
        recorded = np.array([self.first.metrics[metric], self.second.metrics[metric]])
        limit = SAME if self._has_all_rows else CLOSE
        for candidate in self._candidates(metric):
            error = np.abs(np.array(candidate.values()) - recorded)
            if np.all(error <= limit * np.maximum(1.0, np.abs(recorded))):
                return candidate
        return None

    @property
    def _has_all_rows(self) -> bool:
        return len(self._first_rows) == self.first.rows

    def _candidates(self, metric: str) -> Iterator[Paired]:
        """Yield the functions of rows that a metric may be. Where rows are missing, only its name can tell."""
        if means := self._read_means(f"score.{metric}"):
            yield means
        if metric in CORRELATIONS and self._values:
            yield CORRELATIONS[metric](*self._values)
        for function in label_metrics(metric, len(self.first.labels)):
            if self._labels:
                yield LabelPairs(function, *self._labels, len(self.first.labels))
        if metric == "loss" and (means := self._read_means("loss")):
            yield means
        if (self._has_all_rows or metric in ("accuracy", "exact_match")) and (means := self._read_means("correct")):
            yield means

    def _read_means(self, column: str) -> RowMeans | None:
        one, other = self.first.read_numbers(column), self.second.read_numbers(column)
        if one is None or other is None:
            return None
        return RowMeans(one[self._first_rows], other[self._second_rows])

    @cached_property
    def _answers(self) -> list[list[Any]]:
        """What is right, and what the runs predict, for each row of both."""
        return [
            _take(self.first.read_json("reference"), self._first_rows),
            _take(self.first.read_json("prediction"), self._first_rows),
            _take(self.second.read_json("prediction"), self._second_rows),
        ]

    @cached_property
    def _labels(self) -> tuple[Labels, Labels, Labels] | None:
        """The answers as numbers of classes; None where they are no class labels."""
        numbers = {name: number for number, name in enumerate(self.first.labels)}
        found = [[numbers.get(str(_inner(answer, "label")), -1) for answer in answers] for answers in self._answers]
        if any(-1 in labels for labels in found):
            return None
        right, one, other = (np.array(labels, dtype=np.int64) for labels in found)
        return right, one, other

    @cached_property
    def _values(self) -> tuple[Numbers, Numbers, Numbers] | None:
        """The answers as numbers; None where they are none."""
        found = [[_inner(answer, "value") for answer in answers] for answers in self._answers]
        if not all(isinstance(value, int | float) for values in found for value in values):
            return None
        right, one, other = (np.array(values, dtype=np.float64) for values in found)
        return right, one, other


def _take(values: Sequence[Any], places: NDArray[np.int64]) -> list[Any]:
    return [values[place] for place in places]


def _inner(answer: Any, key: str) -> Any:
    """Return what an answer says: the value at its key, or the answer itself where it is no table."""
    return answer.get(key) if isinstance(answer, dict) else answer
