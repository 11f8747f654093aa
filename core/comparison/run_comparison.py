"""`compare`: what differs between runs, and whether one is better than the other. The first run is the baseline.

The page `recipe guide compare` explains the numbers and the shape of the JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.comparison.conditions import ConditionDifference, find_condition_differences
from taskrecipe.comparison.directions import find_directions
from taskrecipe.comparison.metric_differences import MetricDifference, compare_metrics
from taskrecipe.comparison.row_changes import RowChanges, find_row_changes
from taskrecipe.comparison.run_summary import RunSummary
from taskrecipe.comparison.sides import ComparedRun, Side, find_seed_groups, make_sides
from taskrecipe.comparison.spec_differences import SpecDifference, find_spec_differences
from taskrecipe.errors import UsageError
from taskrecipe.recipe import Direction, reported_name

if TYPE_CHECKING:
    from taskrecipe.run.handle import Run

EXAMPLES = 3
"""Rows of each kind that are shown by default."""


@dataclass(frozen=True)
class SideComparison:
    """One side against the baseline."""

    first: Side
    second: Side
    metrics: list[MetricDifference]
    rows: list[RowChanges]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "first": self.first.name,
            "second": self.second.name,
            "metrics": [one.to_json() for one in self.metrics],
            "rows": [one.to_json() for one in self.rows],
            "notes": self.notes,
        }


@dataclass(frozen=True)
class Comparison:
    """What differs between runs. The first side is the baseline of all others."""

    runs: list[ComparedRun]
    sides: list[Side]
    spec: list[SpecDifference]
    conditions: list[ConditionDifference]
    seeds: list[Side]
    """Groups of runs that differ in their seed only."""
    comparisons: list[SideComparison]
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values; `recipe guide compare` explains them."""
        return {
            "runs": [{**_describe_run(run), "seed": run.seed} for run in self.runs],
            "sides": [{"name": side.name, "folders": _folders(side)} for side in self.sides],
            "spec": [one.to_json() for one in self.spec],
            "conditions": [one.to_json() for one in self.conditions],
            "seeds": [_describe_seeds(group) for group in self.seeds],
            "comparisons": [one.to_json() for one in self.comparisons],
            "notes": self.notes,
        }


def compare(*runs: str | Path | Run, rows: int = EXAMPLES) -> Comparison:
    """Compare runs with the first one: specs, data, packages, metrics with their uncertainty, and single rows.

    Runs that differ in their seed only are taken together. `rows` limits the examples of rows that changed.
    """
    if len(runs) < 2:
        raise UsageError("name two runs or more to compare; the first is the baseline")
    compared = [ComparedRun(RunSummary.open(_as_path(run))) for run in runs]
    sides = make_sides(compared)
    directions = _collect_directions(compared)
    return Comparison(
        compared,
        sides,
        find_spec_differences([run.spec for run in compared]),
        find_condition_differences([run.summary for run in compared]),
        find_seed_groups(sides),
        [_compare_sides(sides[0], side, directions, rows) for side in sides[1:]],
        [note for run in compared for note in _describe_limits(run)],
    )


def _as_path(run: str | Path | Run) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.folder


def _compare_sides(first: Side, second: Side, directions: dict[str, Direction], most: int) -> SideComparison:
    notes, changes = [], []
    for split in first.first.evidence:
        one, other = first.evidence(split), second.evidence(split)
        if one is None or other is None:
            continue
        if one.data is None or (one.data, one.rows) != (other.data, other.rows):
            notes.append(f"the rows of {split} differ, so they can't be paired: {one.rows} and {other.rows} rows")
            continue
        named = {metric: directions.get(reported_name(split, metric)) for metric in one.metrics}
        scores = {metric: direction for metric, direction in named.items() if direction is not None}
        if found := find_row_changes(one, other, most, scores):
            changes.append(found)
    return SideComparison(first, second, compare_metrics(first, second, directions), changes, notes)


def _collect_directions(runs: Sequence[ComparedRun]) -> dict[str, Direction]:
    """Return which way each metric is better: as the evidence says, else as the recipe does."""
    found: dict[str, Direction] = {}
    for run in runs:
        found |= find_directions(run.summary)
    for run in runs:
        for evidence in run.evidence.values():
            given: dict[str, Direction] = evidence.about.get("directions") or {}
            found |= {reported_name(evidence.split, metric): direction for metric, direction in given.items()}
    return found


def _describe_limits(run: ComparedRun) -> list[str]:
    summary, notes = run.summary, list(run.problems)
    if summary.state != "finished":
        notes.append(f"{summary.name} is not finished ({summary.state}): its best evaluation so far is compared")
    if not run.metrics:
        notes.append(f"{summary.name} has no evaluation yet")
    elif not run.evidence and not run.problems:
        notes.append(f"{summary.name} has no predictions: only its metrics are compared, without intervals")
    best = summary.best.step if summary.best else None
    for split, evidence in run.evidence.items():
        if None not in (best, evidence.step) and evidence.step != best:
            notes.append(f"{summary.name}: predictions of {split} are from update {evidence.step}, the best is {best}")
    if summary.results.get("data") == "sample":
        notes.append(f"{summary.name} was trained on sample data: its numbers say nothing about the task")
    return [*notes, *summary.problems]


def _describe_run(run: ComparedRun) -> dict[str, Any]:
    facts = run.summary.to_json()
    return {key: facts[key] for key in ("name", "folder", "state", "recipe", "created", "updates", "best")}


def _describe_seeds(group: Side) -> dict[str, Any]:
    metrics = {}
    for name in group.first.metrics:
        interval = group.interval(name)
        metrics[name] = {
            "mean": group.mean(name),
            "interval": [interval.low, interval.high] if interval else None,
            "values": group.seed_values(name),
        }
    return {"name": group.name, "folders": _folders(group), "metrics": metrics}


def _folders(side: Side) -> list[str]:
    return [str(run.summary.folder) for run in side.runs]
