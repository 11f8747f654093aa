"""Charts as plain data. `taskrecipe.report.svg` draws them for a page, `taskrecipe.report.png` for a paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MOST_POINTS = 400
"""Points of a curve that are drawn. More can't be told apart on a screen."""


@dataclass(frozen=True)
class Series:
    """One curve: its values, and their places on each axis that the chart can be drawn along."""

    name: str
    x: Mapping[str, Sequence[float]]
    y: Sequence[float]
    color: int = 0
    """Number in the palette."""
    dashed: bool = False
    line: bool = True
    markers: bool = False
    best: int | None = None
    """The point that is marked as the best."""

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class LineChart:
    """Curves over one or several axes."""

    key: str
    """Name of the figure in links and files."""
    title: str
    series: list[Series]
    axes: dict[str, str]
    """Each axis that it can be drawn along, and its label."""
    note: str = ""
    unit: str = ""
    diagonal: bool = False
    """Whether a line marks where x and y are equal."""
    bounds: tuple[float, float] | None = None
    """The least range of y that is shown."""
    span: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The least range that is shown of each axis."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Of an axis whose places are positions in a list: what the list says."""
    log_axes: frozenset[str] = frozenset()
    """Axes that are drawn along a logarithm."""

    def columns(self) -> list[str]:
        """Return the header of the figure's numbers."""
        return ["series", *self.axes.values(), self.title]

    def rows(self) -> Iterator[list[str | float]]:
        """Yield the figure's numbers."""
        for series in self.series:
            for number, value in enumerate(series.y):
                yield [series.name, *(series.x[axis][number] for axis in self.axes), value]


@dataclass(frozen=True)
class BarChart:
    """One bar for each name, from the top down."""

    key: str
    title: str
    bars: list[tuple[str, float]]
    unit: str = ""
    note: str = ""
    colors: list[int] = field(default_factory=list)
    """Number in the palette of each bar; by default the first for all."""

    def columns(self) -> list[str]:
        """Return the header of the figure's numbers."""
        return ["name", f"{self.title}{f' ({self.unit})' if self.unit else ''}"]

    def rows(self) -> Iterator[list[str | float]]:
        """Yield the figure's numbers."""
        for name, value in self.bars:
            yield [name, value]


Chart = LineChart | BarChart


def thin_points(values: Sequence[float], most: int = MOST_POINTS) -> list[int]:
    """Return which points to draw: all, or the least and the greatest of each stretch, so that no peak is lost."""
    count = len(values)
    if count <= most:
        return list(range(count))
    stretches, kept = most // 2 - 1, {0, count - 1}
    for number in range(stretches):
        places = range(count * number // stretches, count * (number + 1) // stretches)
        kept |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(kept)
