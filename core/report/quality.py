"""Everything that one split's evidence shows: tables, charts, a confusion matrix, rows to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taskrecipe.report.chart import BarChart, Chart
from taskrecipe.report.classes import (
    ClassPairs,
    Confusion,
    chart_calibration,
    chart_precision_recall,
    make_confusion,
    read_pairs,
    tabulate_classes,
)
from taskrecipe.report.evidence import Evidence
from taskrecipe.report.maps import tabulate_maps
from taskrecipe.report.objects import chart_objects, tabulate_objects
from taskrecipe.report.rows import ShownRow, show_rows
from taskrecipe.report.slices import tabulate_slices
from taskrecipe.report.table import Table
from taskrecipe.report.values import chart_values

FEWEST_CLASSES = 2
"""A single name is no metric per class."""


@dataclass(frozen=True)
class Quality:
    """How well a split is predicted, and where it fails."""

    key: str
    run: str
    split: str
    note: str
    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    confusion: Confusion | None = None
    rows: list[ShownRow] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    """Names of the colors in its pictures; empty where nothing is drawn."""


def judge_split(evidence: Evidence, run: str, share: float, images: list[int]) -> Quality:
    """Work out what the evidence shows. `share` cuts the rows; `images` holds how much pictures may still take."""
    pairs = read_pairs(evidence) if evidence.kind == "classes" else None
    tables, charts = _examine(evidence, pairs)
    slices = tabulate_slices(evidence)
    return Quality(
        key=f"{run}-{evidence.split}",
        run=run,
        split=evidence.split,
        note=_describe(evidence),
        tables=[*tables, *([slices] if slices else [])],
        charts=charts,
        confusion=make_confusion(evidence, pairs) if pairs and len(pairs.labels) > 1 else None,
        rows=show_rows(evidence, pairs, share, images),
        labels=evidence.labels if evidence.kind in ("objects", "maps") else [],
    )


def _examine(evidence: Evidence, pairs: ClassPairs | None) -> tuple[list[Table], list[Chart]]:
    charts: Sequence[Chart | None]
    tables: Sequence[Table | None] = []
    match evidence.kind:
        case "classes" if pairs is not None:
            tables = [tabulate_classes(evidence, pairs)]
            charts = [chart_calibration(evidence), chart_precision_recall(evidence, pairs)]
        case "values":
            charts = chart_values(evidence)
        case "objects":
            tables, charts = tabulate_objects(evidence), chart_objects(evidence)
        case "maps":
            tables, charts = [tabulate_maps(evidence)], [_chart_by_class(evidence)]
        case _:
            charts = [_chart_by_class(evidence), chart_calibration(evidence)]
    return [table for table in tables if table], [chart for chart in charts if chart]


def _chart_by_class(evidence: Evidence) -> BarChart | None:
    """Chart the metrics that the run reports for each class, such as `iou_<class>`."""
    for start in ("iou_", "map/", "f1_", "f1/"):
        bars = [
            (label, evidence.metrics[f"{start}{label}"])
            for label in evidence.labels
            if f"{start}{label}" in evidence.metrics
        ]
        if len(bars) >= FEWEST_CLASSES:
            colors = list(range(len(bars)))
            return BarChart(f"by-class-{evidence.split}", f"{start.strip('_/')} of each class", bars, colors=colors)
    return None


def _describe(evidence: Evidence) -> str:
    rows, kept = evidence.about.get("rows", len(evidence.rows)), len(evidence.rows)
    step = evidence.about.get("step")
    text = f"{kept:,} of {rows:,} rows" if isinstance(rows, int) and rows != kept else f"{kept:,} rows"
    return f"{text}, weights of update {step:,}" if isinstance(step, int) else text
