"""Parallel coordinates: one line for each trial of a sweep, across an axis for each key and one for the metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 880, 330
LEFT, RIGHT, TOP, BOTTOM = 58, 58, 34, 16
LONGEST_NAME = 24


@dataclass(frozen=True)
class ParallelAxis:
    """One axis: where its ticks are, from 0 at the bottom to 1 at the top, and what they say."""

    name: str
    ticks: list[tuple[float, str]]


@dataclass(frozen=True)
class ParallelLine:
    """One trial: its place on each axis, and how good it is, from 0 to 1."""

    name: str
    places: list[float]
    cells: list[str | float | None]
    """Its values, as the table of numbers shows them."""
    quality: float
    is_best: bool = False
    is_cut: bool = False
    """Whether the trial was stopped early."""


@dataclass(frozen=True)
class ParallelChart:
    """All trials of a sweep."""

    key: str
    title: str
    axes: list[ParallelAxis]
    lines: list[ParallelLine]
    note: str = ""
    wide: bool = field(default=True)

    def columns(self) -> list[str]:
        """Return the header of the figure's numbers."""
        return ["trial", *(axis.name for axis in self.axes)]

    def rows(self) -> Iterator[list[str | float | None]]:
        """Yield the figure's numbers."""
        for line in self.lines:
            yield [line.name, *line.cells]


def draw_parallel(chart: ParallelChart) -> str:
    """Draw the axes, the lines over them, the best one last, and what the axes say over all."""
    parts = [_draw_axis(chart, number) for number in range(len(chart.axes))]
    ordered = sorted(chart.lines, key=lambda line: (line.is_best, line.quality))
    parts += [_draw_line(chart, line) for line in ordered]
    parts += [part for number, axis in enumerate(chart.axes) for part in _draw_texts(chart, number, axis)]
    return (
        f'<svg class="parallel" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">'
        f"{''.join(parts)}</svg>"
    )


def _x(chart: ParallelChart, number: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * number / max(1, len(chart.axes) - 1)


def _y(place: float) -> float:
    return HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM)


def _draw_axis(chart: ParallelChart, number: int) -> str:
    x = _x(chart, number)
    return f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'


def _draw_texts(chart: ParallelChart, number: int, axis: ParallelAxis) -> Iterator[str]:
    x = _x(chart, number)
    is_last = number == len(chart.axes) - 1
    anchor, shift = ("start", 7) if is_last else ("end", -7)
    end = "start" if number == 0 else "end" if is_last else "middle"
    start = x - LEFT if number == 0 else x + RIGHT if is_last else x
    name = axis.name if len(axis.name) <= LONGEST_NAME else f"…{axis.name[-LONGEST_NAME + 1 :]}"
    yield f'<text class="axis-name" x="{start:.1f}" y="{TOP - 16}" text-anchor="{end}">{escape(name)}</text>'
    for place, text in axis.ticks:
        where = f'x="{x + shift:.1f}" y="{_y(place) + 4:.1f}" text-anchor="{anchor}"'
        yield f'<text class="tick" {where}>{escape(text)}</text>'


def _draw_line(chart: ParallelChart, line: ParallelLine) -> str:
    points = " ".join(f"{_x(chart, number):.1f},{_y(place):.1f}" for number, place in enumerate(line.places))
    kind = "trial best" if line.is_best else "trial cut" if line.is_cut else "trial"
    words = "; ".join(
        f"{axis.name} {_show(cell)}" for axis, cell in zip(chart.axes, line.cells, strict=True) if cell is not None
    )
    return (
        f'<polyline class="{kind}" style="--quality:{line.quality:.2f}" points="{points}">'
        f"<title>trial {escape(line.name)}: {escape(words)}</title></polyline>"
    )


def _show(cell: str | float | None) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def spread_places(values: Sequence[float]) -> list[float]:
    """Return where values lie between the least and the greatest of them, from 0 to 1."""
    low, high = min(values), max(values)
    return [(value - low) / (high - low) if high > low else 0.5 for value in values]
