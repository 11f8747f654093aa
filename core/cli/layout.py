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
            width(),
            initial_indent=" " * indent if first is None else first,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def entries(items: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print labels with texts beside them in one column; a label too long for its own has a line to itself."""
    longest = max((len(label) for label, _ in items), default=0)
    column = min(longest + 4, 2 * width() // 5) if longest else 2
    for label, texts in items:
        lead = f"  {label}".ljust(column)
        if label and len(label) + 4 > column:
            paragraph(label, 2)
            lead = " " * column
        for text in filter(None, texts):
            paragraph(text, column, lead)
            lead = " " * column


def table(rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Print rows in aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        typer.echo(" " * indent + "  ".join(cells).rstrip())
