"""Metrics of the rows that have each value of a column."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import DataError, UsageError
from taskrecipe.system.suggestions import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from datasets import Dataset

    from taskrecipe.data.load import Loaded
    from taskrecipe.use.assessment import Assessment

MOST_GROUPS = 200
"""Values of a column beyond which it is no use to look at each."""
RESAMPLES, MOST_SECONDS = 400, 20.0
"""Resamples of each group, and the time for all of them."""

Assess = Callable[["Loaded"], "list[Assessment]"]
"""Evaluates the rows of all splits."""


@dataclass(frozen=True)
class Group:
    """The rows that have one value of a column."""

    rows: int
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]


def score_groups(loaded: Loaded, assessments: Sequence[Assessment], column: str, assess: Assess) -> dict[str, Group]:
    """Return the metrics of the rows with each value of the column, the value with the most rows first.

    A recipe that joins rows and cuts them again can't say which row a prediction is of: each group is evaluated alone.
    """
    found: dict[str, Group] = {}
    for assessment in assessments:
        raw = loaded.splits[assessment.split]
        members = group_rows(raw, column, assessment.split)
        for value, rows in members.items():
            if assessment.is_aligned and len(raw) == assessment.size:
                group = _score_members(assessment, rows, MOST_SECONDS / len(members))
            else:
                [alone] = assess(replace(loaded, splits={assessment.split: raw.select(rows)}))
                group = Group(len(rows), alone.outcome.metrics, alone.intervals)
            found[value] = _join(found[value], group) if value in found else group
    return dict(sorted(found.items(), key=lambda item: -item[1].rows))


def group_rows(rows: Dataset, column: str, split: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the numbers of the rows that have each value of the column, by the value as text."""
    import numpy as np

    if column not in rows.column_names:
        hint = did_you_mean(column, rows.column_names)
        there = ", ".join(map(repr, rows.column_names))
        raise DataError(f"there is no such column to group by; the data has {there}{hint}", split=split, column=column)
    names = getattr(rows.features[column], "names", None)
    members: dict[str, list[int]] = {}
    for number, value in enumerate(rows[column]):
        members.setdefault(_name_value(value, names), []).append(number)
    if len(members) > MOST_GROUPS:
        raise UsageError(f"column {column!r} has {len(members):,} different values; at most {MOST_GROUPS} make groups")
    return {value: np.array(numbers) for value, numbers in members.items()}


def _name_value(value: Any, names: Sequence[str] | None) -> str:
    if value is None:
        return "(none)"
    if names and isinstance(value, int) and 0 <= value < len(names):
        return names[value]
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _score_members(assessment: Assessment, rows: np.ndarray[Any, Any], seconds: float) -> Group:
    from taskrecipe.recipe import reported_name
    from taskrecipe.use.bootstrap import find_intervals, resample_metrics

    metrics = assessment.score_rows(rows)
    resampled = resample_metrics(lambda chosen: assessment.scorer(rows[chosen]), len(rows), RESAMPLES, seconds)
    intervals = find_intervals({name: values for name, values in resampled.items() if name in assessment.metrics})
    named = {reported_name(assessment.split, name): interval for name, interval in intervals.items()}
    return Group(len(rows), metrics, named)


def _join(one: Group, other: Group) -> Group:
    """Join what two splits have measured for the same value: their metrics have different names."""
    return Group(one.rows + other.rows, {**one.metrics, **other.metrics}, {**one.intervals, **other.intervals})
