"""How well boxes and masks are found: average precision per class, sizes, and precision-recall at an overlap of 0.5."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe.data.coco import decode_run_lengths
from taskrecipe.report.chart import BarChart, Chart, LineChart, Series
from taskrecipe.report.classes import MOST_CURVES, trace_precision
from taskrecipe.report.evidence import Evidence, Floats
from taskrecipe.report.table import Cell, Table

OVERLAP = 0.5
"""How much of their union two shapes must share to count as the same object."""

SCORE = 0.5
"""Predictions with a lower score are not counted in the table."""

SIZES = (("small", "below 32 × 32 pixels"), ("medium", "below 96 × 96"), ("large", "above"))
"""COCO's classes of size, by area."""

Found = dict[str, Any]


def tabulate_objects(evidence: Evidence) -> list[Table]:
    """Tabulate how many objects of each class and of each size there are, were found, and how precisely."""
    matches = _match_rows(evidence)
    there = _count_objects(evidence)
    labels = [label for label in evidence.labels if label in there or label in matches] or sorted(there)
    rows: list[list[Cell]] = []
    for label in labels:
        scores, hits = matches[label]
        found = int(hits[scores >= SCORE].sum()) if len(scores) else 0
        predicted = int((scores >= SCORE).sum()) if len(scores) else 0
        average = _metric(evidence, label)
        rows.append(
            [label, there[label], predicted, found, _share(found, predicted), _share(found, there[label]), average]
        )
    columns = ["class", "objects", "predicted", "right", "precision", "recall", "AP"]
    note = f"Predictions with a score of at least {SCORE}; right if they overlap by {OVERLAP}. AP as COCO defines it."
    return [Table(f"objects-{evidence.split}", "Per class", columns, rows, note), _tabulate_sizes(evidence)]


def chart_objects(evidence: Evidence) -> list[Chart]:
    """Chart precision over recall, and how large the objects are."""
    there = _count_objects(evidence)
    curves = []
    for label, (scores, hits) in _match_rows(evidence).items():
        if there[label]:
            curves.append((label, *trace_precision(scores, hits, there[label])))
    curves.sort(key=lambda curve: curve[-1])
    series = [
        Series(f"{label} ({average:.3f})", {"recall": recall}, precision, color=color)
        for color, (label, recall, precision, average) in enumerate(curves[:MOST_CURVES])
    ]
    note = f"At an overlap of {OVERLAP}, with the average precision of each class."
    axes = {"recall": "recall"}
    key = f"precision-recall-{evidence.split}"
    charts: list[Chart] = []
    if series:
        charts.append(
            LineChart(key, "Precision and recall", series, axes, note, bounds=(0.0, 1.0), span={"recall": (0.0, 1.0)})
        )
    return [*charts, *_chart_sides(evidence)]


def find_area(one: Found) -> float:
    """Return the area of a box or mask in pixels."""
    if "box" in one:
        return float(one["box"][2] * one["box"][3])
    return float(sum(_runs(one["mask"])[1::2]))


def unpack_mask(mask: dict[str, Any]) -> NDArray[np.bool_]:
    """Return a mask (height, width) that COCO's tools have packed."""
    height, width = mask["size"]
    runs = _runs(mask)
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return flat.reshape(width, height).T


def _runs(mask: dict[str, Any]) -> list[int]:
    counts = mask["counts"]
    return decode_run_lengths(counts) if isinstance(counts, str) else list(counts)


def _tabulate_sizes(evidence: Evidence) -> Table:
    areas = [find_area(one) for right in evidence.references for one in _countable(right)]
    counts = Counter("small" if area < 32**2 else "medium" if area < 96**2 else "large" for area in areas)
    rows = [[name, size, counts[name], _metric(evidence, name)] for name, size in SIZES]
    return Table(f"sizes-{evidence.split}", "By size", ["size", "area", "objects", "AP"], rows)


def _chart_sides(evidence: Evidence) -> list[Chart]:
    sides = np.sqrt([find_area(one) for right in evidence.references for one in _countable(right)])
    if not len(sides):
        return []
    edges = np.unique(np.round(np.linspace(0, float(sides.max()) + 1, 9)).astype(int))
    counts, _ = np.histogram(sides, edges)
    bars = [(f"{low}–{high} px", float(n)) for low, high, n in zip(edges, edges[1:], counts, strict=False)]
    note = "Side of the square with the same area."
    return [BarChart(f"sides-{evidence.split}", "How large the objects are", bars, "objects", note)]


def _metric(evidence: Evidence, name: str) -> float | None:
    """Return the average precision of a class or size, as the run has reported it."""
    named = (f"map/{name}", f"map_{name}", f"{evidence.split}/map/{name}", f"{evidence.split}/map_{name}")
    return next((evidence.metrics[one] for one in named if one in evidence.metrics), None)


def _match_rows(evidence: Evidence) -> dict[str, tuple[Floats, NDArray[np.bool_]]]:
    """Return for each class the scores of its predictions, and which of them are right."""
    pairs: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for right, found in zip(evidence.references, evidence.predictions, strict=True):
        for label, score, hit in _match(right or [], found or []):
            pairs[label].append((score, hit))
    matches: dict[str, tuple[Floats, NDArray[np.bool_]]] = defaultdict(lambda: (np.zeros(0), np.zeros(0, dtype=bool)))
    for label, both in pairs.items():
        scores, hits = zip(*both, strict=True)
        matches[label] = np.array(scores, dtype=np.float64), np.array(hits, dtype=bool)
    return matches


def _match(right: Sequence[Found], found: Sequence[Found]) -> Iterable[tuple[str, float, bool]]:
    """Give each prediction, the surest first, the object of its class that it overlaps most, if that is still free."""
    free, crowds = _countable(right), [one for one in right if one.get("crowd")]
    for one in sorted(found, key=lambda one: -float(one.get("score", 0.0))):
        label = str(one.get("label"))
        candidates = [
            (overlap(one, other), place) for place, other in enumerate(free) if str(other.get("label")) == label
        ]
        best, place = max(candidates, default=(0.0, -1))
        if best >= OVERLAP:
            free.pop(place)
        elif any(overlap(one, crowd) >= OVERLAP for crowd in crowds):
            continue
        yield label, float(one.get("score", 0.0)), best >= OVERLAP


def overlap(one: Found, other: Found) -> float:
    """Return how much of their union two boxes or two masks share."""
    if "box" in one and "box" in other:
        a, b = np.asarray(one["box"], dtype=float), np.asarray(other["box"], dtype=float)
        sides = np.minimum(a[:2] + a[2:], b[:2] + b[2:]) - np.maximum(a[:2], b[:2])
        shared = float(np.prod(np.maximum(sides, 0.0)))
        union = float(np.prod(a[2:]) + np.prod(b[2:]) - shared)
    elif "mask" in one and "mask" in other and one["mask"]["size"] == other["mask"]["size"]:
        first, second = unpack_mask(one["mask"]), unpack_mask(other["mask"])
        shared, union = float((first & second).sum()), float((first | second).sum())
    else:
        return 0.0
    return shared / union if union else 0.0


def _count_objects(evidence: Evidence) -> Counter[str]:
    return Counter(str(one.get("label")) for right in evidence.references for one in _countable(right))


def _countable(objects: Sequence[Found] | None) -> list[Found]:
    """Return the objects that count: a crowd is neither found nor missed."""
    return [one for one in objects or [] if not one.get("crowd")]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
