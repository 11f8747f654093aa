"""Print text that fits the terminal: wrapped and aligned."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

import typer

from taskrecipe.system.terminal import printable

WIDTH = 110


def width() -> int:
    """Return the width of a line: that of the terminal, but at most `WIDTH`."""
    return min(shutil.get_terminal_size((WIDTH, 0)).columns, WIDTH)


def print_heading(text: str) -> None:
    """Print a heading in bold."""
    typer.secho(printable(text), bold=True)


def print_paragraph(text: str, indent: int = 0, first: str | None = None) -> None:
    """Print text wrapped and indented. The first line starts with `first` if it is given."""
    typer.echo(
        textwrap.fill(
            printable(text),
            width(),
            initial_indent=" " * indent if first is None else first,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def print_entries(items: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print labels in one column and their texts in the next. A very long label has its own line."""
    items = [(printable(label), texts) for label, texts in items]
    longest = max((len(label) for label, _ in items), default=0)
    column = min(longest + 4, 2 * width() // 5) if longest else 2
    for label, texts in items:
        lead = f"  {label}".ljust(column)
        if label and len(label) + 4 > column:
            print_paragraph(label, 2)
            lead = " " * column
        for text in filter(None, texts):
            print_paragraph(text, column, lead)
            lead = " " * column


def print_table(rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Print rows in aligned columns."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(size) for cell, size in zip(row, widths, strict=True))
        typer.echo(" " * indent + "  ".join(cells).rstrip())


def print_columns(header: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 0) -> None:
    """Print rows under a header: on a terminal as a table that wraps long cells, elsewhere one aligned line a row."""
    if not sys.stdout.isatty():
        print_table([header, *rows], indent)
        return
    from rich import box
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(*header, box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # text from data is no markup
    Console(highlight=False, no_color=bool(os.environ.get("NO_COLOR"))).print(Padding(table, (0, 0, 0, indent)))
