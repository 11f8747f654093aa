"""The page: what the run's files show, put into a template. One file, which needs nothing else to be opened."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from taskrecipe.report.chart import BarChart, Chart, LineChart, Series
from taskrecipe.report.curves import make_curves
from taskrecipe.report.parallel import ParallelChart, draw_parallel
from taskrecipe.report.quality import Quality, judge_split
from taskrecipe.report.run_files import RunFiles
from taskrecipe.report.summary import Summary, compare_runs, name_in_legend, summarize_run
from taskrecipe.report.svg import COLORS, draw_bars, draw_lines
from taskrecipe.report.table import Table, show_cell
from taskrecipe.system.quantities import format_number

FOLDER = Path(__file__).parent / "page"
IMAGE_CHARACTERS = 4_200_000
"""How much of a page images may take. The page stays below 6 MB with them."""
RUNS_WITH_ALL_ROWS = 2
"""With more runs in a page, fewer rows of each are shown."""


@dataclass(frozen=True)
class Page:
    """Everything that the template needs."""

    title: str
    runs: list[RunFiles]
    summaries: list[Summary]
    comparison: Table | None
    legend: list[tuple[str, int]]
    """The name of each run and its color, where there are several."""
    curves: list[Chart]
    qualities: list[Quality]


def build_page(runs: Sequence[RunFiles]) -> Page:
    """Work out everything that a page about these runs shows."""
    several = len(runs) > 1
    share, images = min(1.0, RUNS_WITH_ALL_ROWS / len(runs)), [IMAGE_CHARACTERS]
    return Page(
        title=" · ".join(run.name for run in runs),
        runs=list(runs),
        summaries=[summarize_run(run) for run in runs],
        comparison=compare_runs(runs) if several else None,
        legend=[(name_in_legend(run, runs), color) for color, run in enumerate(runs)] if several else [],
        curves=make_curves(runs),
        qualities=[judge_split(evidence, run.name, share, images) for run in runs for evidence in run.evidence],
    )


def render_page(page: Page) -> str:
    """Write the page as HTML."""
    return render_template("report.html.jinja", page)


def render_template(name: str, page: Any) -> str:
    """Write a page by one of the templates, with the style and the script that all share."""
    script = _read("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Both are files of this package, and no text from data is in them.
    own = {"style": Markup(_read("report.css")), "script": Markup(script)}  # noqa: S704
    values = {"page": page, **own, "digest": digest}
    return _environment().get_template(name).render(values)


def compile_templates() -> None:
    """Compile the template of a run's report, so that writing one later, also in a forked process, is quicker."""
    for name in ("report.html.jinja", "figures.html.jinja"):
        _environment().get_template(name)


def draw_figure(chart: Chart | ParallelChart) -> dict[str, Markup]:
    """Draw a chart along each of its axes; one without axes under an empty name."""
    if isinstance(chart, ParallelChart):
        return {"": Markup(draw_parallel(chart))}  # noqa: S704 - it escapes names itself
    if isinstance(chart, BarChart):
        return {"": Markup(draw_bars(chart))}  # noqa: S704 - it escapes names itself
    return {axis: Markup(draw_lines(chart, axis)) for axis in chart.axes}  # noqa: S704


def figure_data(chart: Chart | ParallelChart) -> dict[str, Any]:
    """Return the numbers of a chart, which its script shows, tabulates and offers for download."""
    data: dict[str, Any] = {"key": chart.key, "columns": chart.columns()}
    if isinstance(chart, LineChart):
        data |= {"axes": chart.axes, "series": [_series_data(series, chart) for series in chart.series]}
    elif isinstance(chart, ParallelChart):
        data["rows"] = list(chart.rows())
    else:
        data["rows"] = [[name, _round(value)] for name, value in chart.bars]
    return data


def _series_data(series: Series, chart: LineChart) -> dict[str, Any]:
    places: dict[str, list[Any]] = {axis: [_round(value) for value in values] for axis, values in series.x.items()}
    for axis, names in chart.names.items():
        places[axis] = [names[int(value)] for value in series.x[axis]]
    return {"name": series.name, "x": places, "y": [_round(value) for value in series.y]}


def _round(value: float) -> float:
    """Keep six digits that count: more only make the page larger."""
    return float(f"{value:.6g}")


def rename_runs(runs: Sequence[RunFiles]) -> list[RunFiles]:
    """Give runs whose folders have the same name different ones: the folder above is added."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return list(runs)
    return [replace(run, label=f"{run.folder.resolve().parent.name}/{run.folder.name}") for run in runs]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"draw_figure": draw_figure, "figure_data": figure_data, "colors": COLORS}
    environment.filters |= {"cell": show_cell, "number": format_number}
    return environment


def _read(name: str) -> str:
    return (FOLDER / name).read_text("utf-8")
