"""How well classes are predicted: per class, which are confused, whether confidence can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe.report.chart import LineChart, Series, thin_points
from taskrecipe.report.evidence import Evidence, Floats, label_of
from taskrecipe.report.table import Table

MOST_CLASSES = 25
"""Classes that the confusion matrix shows: those with the most mistakes."""
MOST_CURVES = 6
"""Classes that precision and recall are drawn of: those with the lowest average precision."""
BINS = 10


@dataclass(frozen=True)
class Confusion:
    """How often each class (rows) was predicted as each class (columns)."""

    key: str
    labels: list[str]
    counts: list[list[int]]
    note: str = ""


@dataclass(frozen=True)
class ClassPairs:
    """What was right and what was predicted, as numbers of `labels`."""

    labels: list[str]
    right: NDArray[np.int64]
    predicted: NDArray[np.int64]
    places: NDArray[np.int64]
    """The row of the evidence that each pair belongs to."""

    @property
    def confusion(self) -> NDArray[np.int64]:
        """The whole confusion matrix."""
        count = len(self.labels)
        return np.bincount(self.right * count + self.predicted, minlength=count * count).reshape(count, count)


def read_pairs(evidence: Evidence) -> ClassPairs:
    """Read the classes of every row that has both."""
    answers = zip(evidence.references, evidence.predictions, strict=True)
    named = [(place, label_of(right), label_of(found)) for place, (right, found) in enumerate(answers)]
    pairs = [(place, right, found) for place, right, found in named if right is not None and found is not None]
    known = dict.fromkeys([*evidence.labels, *sorted({label for _, *both in pairs for label in both})])
    occurring = {label for _, *both in pairs for label in both}
    labels = [label for label in known if label in occurring]
    number = {label: place for place, label in enumerate(labels)}
    return ClassPairs(
        labels,
        np.array([number[right] for _, right, _ in pairs], dtype=np.int64),
        np.array([number[found] for _, _, found in pairs], dtype=np.int64),
        np.array([place for place, _, _ in pairs], dtype=np.int64),
    )


def tabulate_classes(evidence: Evidence, pairs: ClassPairs) -> Table:
    """Tabulate precision, recall and F1 of each class."""
    confusion = pairs.confusion
    right, there, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    precisions = _average_precisions(evidence, pairs)
    rows = [
        [label, *map(int, (there[k], predicted[k])), *_rates(right[k], there[k], predicted[k]), precisions.get(label)]
        for k, label in enumerate(pairs.labels)
    ]
    columns = ["class", "rows", "predicted", "precision", "recall", "F1", "average precision"]
    if not precisions:
        rows, columns = [row[:-1] for row in rows], columns[:-1]
    return Table(f"classes-{evidence.split}", "Per class", columns, rows)


def make_confusion(evidence: Evidence, pairs: ClassPairs) -> Confusion:
    """Make the confusion matrix, of the classes with the most mistakes where there are many."""
    matrix = pairs.confusion
    mistakes = matrix.sum(0) + matrix.sum(1) - 2 * np.diag(matrix)
    kept = np.sort(np.argsort(-mistakes, kind="stable")[:MOST_CLASSES])
    note = "Choose a cell to see its rows."
    if len(kept) < len(pairs.labels):
        note += f" The {len(kept)} classes of {len(pairs.labels)} with the most mistakes are shown."
    labels = [pairs.labels[k] for k in kept]
    return Confusion(f"confusion-{evidence.split}", labels, matrix[np.ix_(kept, kept)].tolist(), note)


def chart_calibration(evidence: Evidence) -> LineChart | None:
    """Chart how often predictions of each confidence are right; None where nothing says how sure they are."""
    known = ~np.isnan(evidence.confidence) & ~np.isnan(evidence.correct)
    confidence, correct = evidence.confidence[known], evidence.correct[known]
    if not len(confidence):
        return None
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    used = [number for number in range(BINS) if (bins == number).any()]
    means = [float(confidence[bins == number].mean()) for number in used]
    rates = [float(correct[bins == number].mean()) for number in used]
    shares = [float((bins == number).mean()) for number in used]
    gap = sum(share * abs(mean - rate) for share, mean, rate in zip(shares, means, rates, strict=True))
    note = f"On the line, confidence can be taken at its word. Expected error {gap:.4f} on {len(correct):,} rows."
    series = [
        Series("share that is right", {"confidence": means}, rates, markers=True),
        Series("share of all rows", {"confidence": means}, shares, color=6, dashed=True, markers=True),
    ]
    key = f"calibration-{evidence.split}"
    return LineChart(
        key,
        "Calibration",
        series,
        {"confidence": "confidence"},
        note,
        diagonal=True,
        bounds=(0.0, 1.0),
        span={"confidence": (0.0, 1.0)},
    )


def chart_precision_recall(evidence: Evidence, pairs: ClassPairs) -> LineChart | None:
    """Chart precision over recall of the classes that are hardest to tell; None without probabilities."""
    found = _average_precisions(evidence, pairs)
    hardest = sorted(found, key=found.__getitem__)[:MOST_CURVES]
    series = []
    for color, label in enumerate(hardest):
        recall, precision, average = _curve(evidence, pairs, label)
        series.append(Series(f"{label} ({average:.3f})", {"recall": recall}, precision, color=color))
    note = "Each class against all others, with its average precision."
    if len(found) > len(hardest):
        note += f" The {len(hardest)} hardest of {len(found)} classes."
    key = f"precision-recall-{evidence.split}"
    axes = {"recall": "recall"}
    return (
        LineChart(key, "Precision and recall", series, axes, note, bounds=(0.0, 1.0), span={"recall": (0.0, 1.0)})
        if series
        else None
    )


def trace_precision(scores: Floats, hits: NDArray[np.bool_], total: int) -> tuple[list[float], list[float], float]:
    """Return recall and precision as the threshold falls, and the average precision."""
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(hits[order])
    precision, recall = found / np.arange(1, len(found) + 1), found / max(total, 1)
    average = float(np.sum(precision * np.diff(recall, prepend=0.0)))
    kept = thin_points(precision.tolist(), 120)
    return [float(recall[k]) for k in kept], [float(precision[k]) for k in kept], average


def _curve(evidence: Evidence, pairs: ClassPairs, label: str) -> tuple[list[float], list[float], float]:
    scores = np.array([_probability(evidence.predictions[place], label) for place in pairs.places])
    hits = pairs.right == pairs.labels.index(label)
    return trace_precision(scores, hits, int(hits.sum()))


def _average_precisions(evidence: Evidence, pairs: ClassPairs) -> dict[str, float]:
    if not any(_probabilities(evidence.predictions[place]) for place in pairs.places[:1]):
        return {}
    there = [label for k, label in enumerate(pairs.labels) if (pairs.right == k).any()]
    return {label: _curve(evidence, pairs, label)[2] for label in there}


def _probability(prediction: Any, label: str) -> float:
    return float(_probabilities(prediction).get(label, 0.0))


def _probabilities(prediction: Any) -> dict[str, float]:
    found = prediction.get("probabilities") if isinstance(prediction, dict) else None
    if isinstance(found, list):  # choices are numbered
        return {str(number): value for number, value in enumerate(found)}
    return found if isinstance(found, dict) else {}


def _rates(right: int, there: int, predicted: int) -> Sequence[float | None]:
    precision = float(right / predicted) if predicted else None
    recall = float(right / there) if there else None
    return precision, recall, float(2 * right / (there + predicted)) if there + predicted else None
