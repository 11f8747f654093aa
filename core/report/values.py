"""How well numbers are predicted: predicted against right, and how the errors are spread."""

from __future__ import annotations

import numpy as np

from taskrecipe.report.chart import BarChart, Chart, LineChart, Series
from taskrecipe.report.evidence import Evidence, Floats, value_of
from taskrecipe.report.scale import choose_ticks, format_ticks
from taskrecipe.system.quantities import format_number

MOST_DOTS = 500


def read_values(evidence: Evidence) -> tuple[Floats, Floats]:
    """Return what was right and what was predicted, of every row that has both."""
    answers = zip(evidence.references, evidence.predictions, strict=True)
    pairs = [(value_of(right), value_of(found)) for right, found in answers]
    known = np.array([pair for pair in pairs if None not in pair], dtype=np.float64).reshape(-1, 2)
    return known[:, 0], known[:, 1]


def chart_values(evidence: Evidence) -> list[Chart]:
    """Chart predicted against right values, and the residuals."""
    right, found = read_values(evidence)
    if not len(right):
        return []
    chosen = np.sort(np.random.default_rng(0).permutation(len(right))[:MOST_DOTS])
    dots = Series("row", {"right": right[chosen].tolist()}, found[chosen].tolist(), line=False, markers=True)
    note = f"{len(chosen):,} of {len(right):,} rows. On the line, the prediction is right."
    axes = {"right": "right value"}
    scatter = LineChart(f"values-{evidence.split}", "Predicted value", [dots], axes, note, diagonal=True)
    return [scatter, chart_residuals(evidence.split, found - right)]


def chart_residuals(split: str, residuals: Floats) -> BarChart:
    """Chart how often the prediction is off by how much."""
    edges = choose_ticks(float(residuals.min()), float(residuals.max()), most=10)
    step = edges[1] - edges[0] if len(edges) > 1 else 1.0
    edges = [edges[0] - step, *edges, edges[-1] + step]
    counts, _ = np.histogram(residuals, edges)
    names = [f"{low} to {high}" for low, high in zip(format_ticks(edges), format_ticks(edges[1:]), strict=False)]
    bars = [(name, float(count)) for name, count in zip(names, counts, strict=True)]
    while bars and not bars[0][1]:
        bars.pop(0)
    while bars and not bars[-1][1]:
        bars.pop()
    spread = f"mean {format_number(float(residuals.mean()))}, deviation {format_number(float(residuals.std()))}"
    return BarChart(f"residuals-{split}", "Residuals", bars, unit="rows", note=f"Predicted minus right: {spread}.")
