"""Plain text that fits the terminal: wrapped, aligned, bold where that shows."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

import typer

WIDTH = 110


def width() -> int:
    """How many characters fit a line; never more than reads well."""
    return min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH)


def heading(text: str) -> None:
    """Print a heading."""
    typer.secho(text, bold=True)


def paragraph(text: str, indent: int = 0, first: str | None = None) -> None:
    """Print text wrapped and indented; the first line begins with `first` instead of spaces."""
    typer.echo(
        textwrap.fill(
            text,
            max(width(), indent + 40),
            initial_indent=" " * indent if first is None else first.ljust(indent),
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Print rows in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        typer.echo(" " * indent + "  ".join(cells).rstrip())
