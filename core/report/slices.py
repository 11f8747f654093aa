"""Slices: groups of rows that have something in common, and how well each of them is predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from taskrecipe.report.evidence import Evidence, Floats
from taskrecipe.report.table import Table

MOST_VALUES = 12
"""A column with more different values makes no slices."""
FEWEST_ROWS = 5
PARTS = 4
"""Into how many groups of equal size the lengths of texts are cut."""

Groups = dict[str, list[int]]


def tabulate_slices(evidence: Evidence) -> Table | None:
    """Tabulate the rows by source, by columns with few values, and by the length of their texts; the worst first."""
    name, value = _quality(evidence)
    if value is None:
        return None
    rows: list[list[Any]] = []
    for slice_of, groups in _find_groups(evidence):
        for label, places in groups.items():
            known = value[places][~np.isnan(value[places])]
            if len(known) >= FEWEST_ROWS and len(groups) > 1:
                losses = evidence.loss[places]
                loss = float(np.nanmean(losses)) if np.isfinite(losses).any() else None
                rows.append([slice_of, label, len(known), float(known.mean()), _half_width(known), loss])
    if not rows:
        return None
    lower_is_worse = (evidence.about.get("directions") or {}).get(name, "max") == "max" and name != "loss"
    rows.sort(key=lambda row: row[3], reverse=not lower_is_worse)
    columns = ["slice of", "value", "rows", name, "±", "loss"]
    if all(row[-1] is None for row in rows) or name == "loss":
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    note = "± is half of a 95 % interval. Slices whose intervals overlap may not differ."
    return Table(f"slices-{evidence.split}", "Slices, the worst first", columns, rows, note)


def _quality(evidence: Evidence) -> tuple[str, Floats | None]:
    """Return what slices are compared by: whether rows are right, else their first score, else their loss."""
    if not np.isnan(evidence.correct).all():
        return "share that is right", evidence.correct
    for name, values in evidence.scores.items():
        if not np.isnan(values).all():
            return name, values
    return ("loss", evidence.loss) if not np.isnan(evidence.loss).all() else ("", None)


def _find_groups(evidence: Evidence) -> Iterator[tuple[str, Groups]]:
    files = [str(source).split(",")[0].split(":")[0] if source else None for source in evidence.sources]
    yield "source", _group(files)
    for column in dict.fromkeys(name for row in evidence.inputs[:50] for name in row):
        values = [row.get(column) for row in evidence.inputs]
        if all(isinstance(value, str | int | bool | None) for value in values):
            yield column, _group([None if value is None else str(value) for value in values])
        if sum(isinstance(value, str) for value in values) > len(values) / 2:
            yield f"length of {column}", _group_lengths(values, lambda text: len(text.split()), "words")


def _group(values: list[str | None]) -> Groups:
    groups: Groups = {}
    for place, value in enumerate(values):
        if value is not None:
            groups.setdefault(value, []).append(place)
    return groups if len(groups) <= MOST_VALUES and max(map(len, groups), default=0) <= 80 else {}


def _group_lengths(values: list[Any], measure: Callable[[str], int], unit: str) -> Groups:
    lengths = np.array([measure(value) if isinstance(value, str) else -1 for value in values])
    known = lengths[lengths >= 0]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, PARTS + 1)).round().astype(int))
    groups = {}
    for number, (low, high) in enumerate(pairwise(edges)):
        last = number == len(edges) - 2
        inside = (lengths >= low) & (lengths <= high if last else lengths < high)
        end = high if last else high - 1
        groups[f"{low}–{end} {unit}" if end > low else f"{low} {unit}"] = np.flatnonzero(inside).tolist()
    return groups


def _half_width(values: Floats) -> float:
    return float(1.96 * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
