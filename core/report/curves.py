"""The curves of one run, or of several laid over each other: loss, learning rate, metrics, speed, memory, time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from taskrecipe.report.chart import BarChart, Chart, LineChart, Series, thin_points
from taskrecipe.report.history import Moment, as_number
from taskrecipe.report.run_files import RunFiles

AXES = {"update": "update", "epoch": "epoch", "time": "minutes of work"}
"""What curves can be drawn along."""

NUMBERS = {
    "learning_rate": "Learning rate",
    "grad_norm": "Grad norm",
    "rows_per_second": "Rows per second",
    "tokens_per_second": "Tokens per second",
    "data_wait": "Share of time spent waiting for data",
    "memory_mb": "Peak memory (MiB)",
}
"""The numbers of an update that have a chart of their own."""

MOST_METRICS = 24
"""Metrics that have a chart of their own. A recipe with many classes may report one for each."""

Read = Callable[[Moment], float | None]


def make_curves(runs: Sequence[RunFiles]) -> list[Chart]:
    """Make every chart that there are numbers for."""
    axes = _common_axes(runs)
    charts = [_loss_chart(runs, axes), *_term_charts(runs, axes), *_metric_charts(runs, axes)]
    for name, title in NUMBERS.items():
        charts.append(_chart(name, title, _each_run(runs, _number(name), axes), axes))
    span = {axis: (0.0, max(_ends(charts, axis), default=1.0)) for axis in axes}
    drawn: list[Chart] = [replace(chart, span=span) for chart in charts if chart.series]
    return [*drawn, *_time_charts(runs)]


def _ends(charts: Iterable[LineChart], axis: str) -> list[float]:
    """Return where each curve ends. All charts are drawn up to the last of them, so that they can be compared."""
    return [series.x[axis][-1] for chart in charts for series in chart.series]


def _common_axes(runs: Sequence[RunFiles]) -> dict[str, str]:
    """Return the axes that every moment of every run has a place on."""
    moments = [moment for run in runs for moment in (*run.history.updates, *run.history.evaluations)]
    known = {
        "update": True,
        "epoch": all(moment.epoch is not None for moment in moments),
        "time": all(moment.seconds is not None for moment in moments),
    }
    return {name: label for name, label in AXES.items() if known[name]}


def _chart(key: str, title: str, series: list[Series], axes: dict[str, str], note: str = "") -> LineChart:
    return LineChart(key, title, series, axes, note)


def _loss_chart(runs: Sequence[RunFiles], axes: dict[str, str]) -> LineChart:
    """Chart the training loss and, over it, the loss of each evaluated split."""
    series = _each_run(runs, _number("loss"), axes, name="training")
    for color, run in enumerate(runs):
        for place, (split, metric) in enumerate(_splits_with(run, "loss")):
            own = 1 + place if len(runs) == 1 else color
            points = _series(run.history.evaluations, _metric(metric), axes)
            if points is not None:
                name = split if len(runs) == 1 else f"{run.name}, {split}"
                series.append(Series(name, *points, color=own, dashed=len(runs) > 1, markers=True))
    return _chart("loss", "Loss", series, axes)


def _term_charts(runs: Sequence[RunFiles], axes: dict[str, str]) -> list[LineChart]:
    """Chart the terms of the loss: all in one for a single run, one chart for each where runs are compared."""
    names = list(dict.fromkeys(name for run in runs for moment in run.history.updates for name in _terms(moment)))
    if len(runs) > 1:
        return [
            _chart(f"term-{name}", f"Loss term: {name}", _each_run(runs, _term(name), axes), axes) for name in names
        ]
    series = [
        Series(name, *points, color=color)
        for color, name in enumerate(names)
        if (points := _series(runs[0].history.updates, _term(name), axes)) is not None
    ]
    return [_chart("terms", "Loss, term by term", series, axes)]


def _metric_charts(runs: Sequence[RunFiles], axes: dict[str, str]) -> list[LineChart]:
    """Chart every metric but the loss, the one that decides the best checkpoint first."""
    found = dict.fromkeys(
        str(name) for run in runs for moment in run.history.evaluations for name in moment.record["metrics"]
    )
    first = {run.history.best_metric: None for run in runs if run.history.best_metric in found}
    names = [name for name in first | found if name.rpartition("/")[2] != "loss"]
    return [_metric_chart(name, runs, axes) for name in names[:MOST_METRICS]]


def _metric_chart(name: str, runs: Sequence[RunFiles], axes: dict[str, str]) -> LineChart:
    series = []
    for color, run in enumerate(runs):
        moments = [moment for moment in run.history.evaluations if _metric(name)(moment) is not None]
        points = _series(moments, _metric(name), axes)
        if points is not None:
            best = run.history.best
            steps = [moment.step for moment in moments]
            mark = steps.index(best.step) if best and best.step in steps and len(steps) == len(points[1]) else None
            series.append(Series(run.name, *points, color=color, markers=len(points[1]) <= 60, best=mark))
    decides = any(run.history.best_metric == name for run in runs)
    note = "Decides the best checkpoint, which is marked." if decides else ""
    return _chart(f"metric-{name}", name, series, axes, note)


def _time_charts(runs: Sequence[RunFiles]) -> list[Chart]:
    charts: list[Chart] = []
    for run in runs:
        timings = {name: as_number(value) for name, value in (run.results.get("timings") or {}).items()}
        bars = [(name, value) for name, value in timings.items() if value is not None]
        if bars:
            single = len(runs) == 1
            key, title = ("time", "Where the time went") if single else (f"time-{run.name}", f"Time: {run.name}")
            charts.append(BarChart(key, title, bars, unit="s", colors=list(range(len(bars)))))
    return charts


def _each_run(runs: Sequence[RunFiles], read: Read, axes: dict[str, str], name: str = "") -> list[Series]:
    found = [(color, run, _series(run.history.updates, read, axes)) for color, run in enumerate(runs)]
    return [
        Series(run.name if len(runs) > 1 or not name else name, *points, color=color)
        for color, run, points in found
        if points is not None
    ]


def _series(
    moments: Iterable[Moment], read: Read, axes: dict[str, str]
) -> tuple[dict[str, list[float]], list[float]] | None:
    """Return the places and values of a curve, thinned; None where there is no value."""
    points = [(moment, value) for moment in moments if (value := read(moment)) is not None]
    if not points:
        return None
    kept = [points[number] for number in thin_points([value for _, value in points])]
    return {axis: [_place(moment, axis) for moment, _ in kept] for axis in axes}, [value for _, value in kept]


def _place(moment: Moment, axis: str) -> float:
    if axis == "epoch":
        return moment.epoch or 0.0
    return (moment.seconds or 0.0) / 60 if axis == "time" else float(moment.step)


def _number(name: str) -> Read:
    return lambda moment: moment.number(name)


def _terms(moment: Moment) -> dict[str, float]:
    terms = moment.record.get("terms")
    return terms if isinstance(terms, dict) else {}


def _term(name: str) -> Read:
    return lambda moment: as_number(_terms(moment).get(name))


def _metric(name: str) -> Read:
    return lambda moment: as_number(moment.record["metrics"].get(name))


def _splits_with(run: RunFiles, metric: str) -> list[tuple[str, str]]:
    """Return the splits that report a metric, each with the name it is reported by."""
    names = dict.fromkeys(str(name) for moment in run.history.evaluations for name in moment.record["metrics"])
    return [(name.rpartition("/")[0] or "validation", name) for name in names if name.rpartition("/")[2] == metric]
