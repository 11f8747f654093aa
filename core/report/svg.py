"""Charts drawn as SVG, in colors that the page's style sets for light and dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from taskrecipe.report.chart import BarChart, LineChart, Series
from taskrecipe.report.scale import Scale, choose_log_ticks, choose_ticks, fit_range, format_ticks
from taskrecipe.system.quantities import format_number

WIDTH, HEIGHT = 420, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 38
BAR, GAP, NAMES = 16, 9, 118
COLORS = 8
"""Length of the palette. Further curves begin again at its start, with dashes."""


def draw_lines(chart: LineChart, axis: str) -> str:
    """Draw the curves along one of the chart's axes."""
    x = Scale(*_range_of_axis(chart, axis), LEFT, WIDTH - RIGHT, axis in chart.log_axes)
    y = Scale(*fit_range((value for series in chart.series for value in series.y), chart.bounds), HEIGHT - BOTTOM, TOP)
    parts = [*_grid(x, y, chart, axis)]
    if chart.diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        parts.append(_line("diagonal", x.place(low), y.place(low), x.place(high), y.place(high)))
    for number, series in enumerate(chart.series):
        parts.extend(_curve(series, number, axis, x, y))
    parts.append(f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" x1="0" x2="0"/>')
    return _svg(chart.title, HEIGHT, parts)


def draw_bars(chart: BarChart) -> str:
    """Draw the bars from left to right, with names and values next to them."""
    height = len(chart.bars) * (BAR + GAP) + GAP
    largest = max((abs(value) for _, value in chart.bars), default=0.0) or 1.0
    x = Scale(0.0, largest, NAMES, WIDTH - 76)
    parts = []
    for number, (name, value) in enumerate(chart.bars):
        top = GAP + number * (BAR + GAP)
        color = chart.colors[number] if chart.colors else 0
        end = max(x.place(abs(value)), NAMES + 1.0)
        text = f"{value:,.4g}{f' {chart.unit}' if chart.unit else ''}"
        parts += [
            f'<text class="name" x="{NAMES - 8}" y="{top + BAR - 4}">{escape(_cut(name, 18))}</text>',
            f'<rect class="fill c{color % COLORS}" x="{NAMES}" y="{top}" width="{end - NAMES:.1f}" height="{BAR}" '
            f'rx="2"><title>{escape(name)}: {escape(text)}</title></rect>',
            f'<text class="value" x="{end + 6:.1f}" y="{top + BAR - 4}">{escape(text)}</text>',
        ]
    return _svg(chart.title, height, parts)


def _range_of_axis(chart: LineChart, axis: str) -> tuple[float, float]:
    values = [value for series in chart.series for value in series.x[axis]]
    values += chart.span.get(axis, ())
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if axis in chart.log_axes:
        return low / 1.3, high * 1.3
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _grid(x: Scale, y: Scale, chart: LineChart, axis: str) -> Iterator[str]:
    rows, unit = choose_ticks(y.low, y.high), chart.unit
    for tick, text in zip(rows, format_ticks(rows), strict=True):
        yield _line("grid", LEFT, y.place(tick), WIDTH - RIGHT, y.place(tick))
        yield f'<text class="y" x="{LEFT - 7}" y="{y.place(tick) + 4:.1f}">{text}{unit if unit == "%" else ""}</text>'
    for tick, text in _column_ticks(x, chart.names.get(axis)):
        yield f'<text class="x" x="{x.place(tick):.1f}" y="{HEIGHT - BOTTOM + 16}">{escape(text)}</text>'
    yield _line("axis", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM)
    yield f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 5}">{escape(chart.axes[axis])}</text>'


def _column_ticks(x: Scale, names: Sequence[str] | None) -> list[tuple[float, str]]:
    if names is not None:
        return [(float(place), _cut(name, max(6, 60 // len(names)))) for place, name in enumerate(names)]
    if x.log:
        return [(tick, f"{tick:g}") for tick in choose_log_ticks(x.low, x.high)]
    ticks = choose_ticks(x.low, x.high)
    return list(zip(ticks, format_ticks(ticks), strict=True))


def _curve(series: Series, number: int, axis: str, x: Scale, y: Scale) -> Iterator[str]:
    places = [(x.place(a), y.place(b)) for a, b in zip(series.x[axis], series.y, strict=True)]
    color = f"c{series.color % COLORS}"
    dashed = " dashed" if series.dashed or series.color >= COLORS else ""
    yield f'<g class="series" data-series="{number}">'
    yield f'<polyline class="line {color}{dashed}{"" if series.line else " hidden"}" points="{_points(places)}"/>'
    if series.markers or len(places) == 1:
        yield from (f'<circle class="dot {color}" cx="{a:.1f}" cy="{b:.1f}" r="2.6"/>' for a, b in places)
    if series.best is not None:
        a, b = places[series.best]
        anchor = "end" if a > (LEFT + WIDTH) / 2 else "start"
        shift = -9 if anchor == "end" else 9
        yield f'<circle class="best {color}" cx="{a:.1f}" cy="{b:.1f}" r="5.5"/>'
        above = b - 8 if b > TOP + 16 else b + 18
        text = format_number(series.y[series.best])
        yield f'<text class="best-value" x="{a + shift:.1f}" y="{above:.1f}" text-anchor="{anchor}">best {text}</text>'
    yield "</g>"


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in places)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
