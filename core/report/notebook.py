"""A run as a notebook shows it: how it ended, its metrics and its curves. It needs nothing but this HTML."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from taskrecipe.report.chart import LineChart
from taskrecipe.report.curves import make_curves
from taskrecipe.report.run_files import RunFiles, read_run
from taskrecipe.report.summary import summarize_run
from taskrecipe.report.svg import draw_lines
from taskrecipe.report.table import Table, show_cell

MOST_CURVES = 3

STYLE = """
.taskrecipe-run { font: 13px/1.5 system-ui, sans-serif; max-width: 900px; }
.taskrecipe-run .curves { display: flex; flex-wrap: wrap; gap: 12px; }
.taskrecipe-run figure { margin: 8px 0; width: 280px; } .taskrecipe-run figcaption { font-weight: 600; }
.taskrecipe-run text { font: 11px system-ui, sans-serif; fill: currentColor; text-anchor: middle; }
.taskrecipe-run text.y { text-anchor: end; } .taskrecipe-run text.best-value { text-anchor: inherit; font-weight: 600; }
.taskrecipe-run line { stroke: currentColor; opacity: .15; } .taskrecipe-run line.cursor { display: none; }
.taskrecipe-run .line { fill: none; stroke-width: 1.8; } .taskrecipe-run .line.dashed { stroke-dasharray: 5 4; }
.taskrecipe-run .best { fill: none; stroke-width: 2; }
.taskrecipe-run .line.c0, .taskrecipe-run .best.c0 { stroke: #0072b2; } .taskrecipe-run .dot.c0 { fill: #0072b2; }
.taskrecipe-run .line.c1, .taskrecipe-run .best.c1 { stroke: #d55e00; } .taskrecipe-run .dot.c1 { fill: #d55e00; }
.taskrecipe-run .line.c2, .taskrecipe-run .best.c2 { stroke: #009e73; } .taskrecipe-run .dot.c2 { fill: #009e73; }
.taskrecipe-run table { font-size: 13px; border-collapse: collapse; margin: 6px 0; }
.taskrecipe-run td, .taskrecipe-run th { padding: 2px 12px 2px 0; text-align: left; }
"""


def render_run(folder: str | Path) -> str:
    """Return a run as HTML for a notebook. Text from data is escaped."""
    run = read_run(Path(folder))
    return f'<div class="taskrecipe-run"><style>{STYLE}</style>{"".join(_parts(run))}</div>'


def _parts(run: RunFiles) -> Iterator[str]:
    summary = summarize_run(run)
    yield f"<b>{escape(summary.name)}</b> · {escape(summary.status)} · {escape(summary.sentence)}<br>"
    facts = (f"{escape(name)} {escape(value)}" for name, value, _ in summary.facts)
    yield f"{' · '.join(facts)}<br><code>{escape(str(run.folder))}</code>"
    if summary.error:
        yield f"<p>{escape(summary.error)}</p>"
    if summary.metrics is not None:
        yield _draw_table(summary.metrics)
    curves = [chart for chart in make_curves([run]) if isinstance(chart, LineChart)][:MOST_CURVES]
    yield f'<div class="curves">{"".join(map(_draw_curve, curves))}</div>'


def _draw_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = ("".join(f"<td>{escape(show_cell(cell))}</td>" for cell in row) for row in table.rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _draw_curve(chart: LineChart) -> str:
    legend = ", ".join(series.name for series in chart.series) if len(chart.series) > 1 else ""
    title = f"{chart.title} ({legend})" if legend else chart.title
    return f"<figure><figcaption>{escape(title)}</figcaption>{draw_lines(chart, next(iter(chart.axes)))}</figure>"
