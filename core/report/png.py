"""Charts and tables as PNG files for a paper or a slide, drawn by matplotlib."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.report.chart import BarChart, Chart, LineChart
from taskrecipe.report.classes import Confusion
from taskrecipe.report.maps import PALETTE
from taskrecipe.report.page import Page
from taskrecipe.report.table import Table, show_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (4.8, 3.0)
"""Inches: as wide as a column of text."""
DPI = 220
COLORS = ["#{:02x}{:02x}{:02x}".format(*color) for color in PALETTE]
MOST_ROWS = 30
"""Rows of a table that are drawn."""

Draw = Callable[["Axes"], None]


def draw_pictures(page: Page, folder: Path) -> list[Path]:
    """Draw every chart and table of a page into a folder, and return the files."""
    drawings: list[tuple[str, Draw, tuple[float, float]]] = []
    for chart in [*page.curves, *(chart for one in page.qualities for chart in one.charts)]:
        drawings.append((chart.key, _chart_drawing(chart), _size_of(chart)))
    tables = [page.comparison, *(one.metrics for one in page.summaries)]
    for table in [*(table for table in tables if table), *(table for one in page.qualities for table in one.tables)]:
        drawings.append((f"table-{table.key}", _table_drawing(table), _size_of_table(table)))
    for one in page.qualities:
        if one.confusion:
            side = 1.6 + 0.45 * len(one.confusion.labels)
            drawings.append((one.confusion.key, _confusion_drawing(one.confusion), (side + 0.6, side)))
    names = _name_files([key for key, *_ in drawings])
    return [_save(folder / name, draw, size) for name, (_, draw, size) in zip(names, drawings, strict=True)]


def _save(path: Path, draw: Draw, size: tuple[float, float]) -> Path:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DPI, layout="constrained", facecolor="white")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its font lacks some scripts, and draws boxes instead
        draw(figure.add_subplot())
        figure.savefig(path, format="png", metadata={"Software": None}, bbox_inches="tight", pad_inches=0.05)
    return path


def _name_files(keys: Sequence[str]) -> list[str]:
    """Return a file name for each key: without characters that mean something, and each only once."""
    names: list[str] = []
    for key in keys:
        stem = re.sub(r"[^\w.-]+", "-", key).strip("-.") or "figure"
        number = 1
        while (name := f"{stem}.png" if number == 1 else f"{stem}-{number}.png") in names:
            number += 1
        names.append(name)
    return names


def _chart_drawing(chart: Chart) -> Draw:
    return (
        (lambda axes: _draw_lines(chart, axes))
        if isinstance(chart, LineChart)
        else lambda axes: _draw_bars(chart, axes)
    )


def _draw_lines(chart: LineChart, axes: Axes) -> None:
    axis = next(iter(chart.axes))
    for series in chart.series:
        style: dict[str, Any] = {"color": COLORS[series.color % len(COLORS)], "linewidth": 1.3}
        style["linestyle"] = (
            "none" if not series.line else "--" if series.dashed or series.color >= len(COLORS) else "-"
        )
        if series.markers or len(series) == 1:
            style |= {"marker": "o", "markersize": 2.5}
        axes.plot(series.x[axis], series.y, label=_plain(series.name), **style)
        if series.best is not None:
            place = series.x[axis][series.best], series.y[series.best]
            axes.plot(*place, "o", markersize=7, markerfacecolor="none", markeredgecolor=style["color"])
    if chart.diagonal:
        axes.axline((0, 0), slope=1, color="#999999", linewidth=0.8, linestyle=":")
    if chart.bounds:
        axes.set_ylim(chart.bounds[0], chart.bounds[1] * 1.02)
    _label(axes, chart.axes[axis], chart.title)
    if len(chart.series) > 1:
        axes.legend(*axes.get_legend_handles_labels(), fontsize=7, frameon=False)


def _draw_bars(chart: BarChart, axes: Axes) -> None:
    names, values = [_plain(name) for name, _ in chart.bars], [value for _, value in chart.bars]
    colors = [COLORS[color % len(COLORS)] for color in chart.colors or [0] * len(values)]
    places = range(len(names))
    axes.barh(places, values, color=colors)
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    _label(axes, chart.unit, "")
    axes.set_title(_plain(chart.title), fontsize=9)
    axes.grid(False)


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(_plain(x), fontsize=8)
    axes.set_ylabel(_plain(y), fontsize=8)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.6)
    axes.set_axisbelow(True)


def _size_of(chart: Chart) -> tuple[float, float]:
    return SIZE if isinstance(chart, LineChart) else (SIZE[0], 0.9 + 0.26 * len(chart.bars))


def _size_of_table(table: Table) -> tuple[float, float]:
    rows = table.rows[:MOST_ROWS]
    widths = [max(len(show_cell(row[k])) for row in [table.columns, *rows]) for k in range(len(table.columns))]
    return max(2.5, 0.09 * (sum(widths) + 2 * len(widths))), 0.35 + 0.24 * (len(rows) + 1)


def _table_drawing(table: Table) -> Draw:
    def draw(axes: Axes) -> None:
        axes.axis("off")
        cells = [[_plain(show_cell(cell)) for cell in row] for row in table.rows[:MOST_ROWS]]
        drawn = axes.table(cells, colLabels=[_plain(name) for name in table.columns], loc="center", edges="horizontal")
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(8)
        drawn.auto_set_column_width(list(range(len(table.columns))))
        for (row, column), cell in drawn.get_celld().items():
            cell.get_text().set_horizontalalignment("right" if table.numeric[column] else "left")
            cell.set_text_props(weight="bold" if row == 0 else "normal")
            cell.set_edgecolor("#cccccc")

    return draw


def _confusion_drawing(confusion: Confusion) -> Draw:
    def draw(axes: Axes) -> None:
        shares = [[count / (sum(row) or 1) for count in row] for row in confusion.counts]
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        places, names = range(len(confusion.labels)), [_plain(label) for label in confusion.labels]
        axes.set_xticks(places, names, rotation=45, ha="right", fontsize=7)
        axes.set_yticks(places, names, fontsize=7)
        for right, row in enumerate(confusion.counts):
            for found, count in enumerate(row):
                color = "white" if shares[right][found] > 0.5 else "black"
                axes.text(found, right, str(count), ha="center", va="center", fontsize=7, color=color)
        axes.set_xlabel("predicted", fontsize=8)
        axes.set_ylabel("right", fontsize=8)

    return draw


def _plain(text: str) -> str:
    """Return text as it is: matplotlib would read what is between dollar signs as a formula."""
    return text.replace("$", r"\$")
