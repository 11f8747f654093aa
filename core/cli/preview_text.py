"""A preview on the terminal: colors for the roles of tokens, or marks where there are none."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from taskrecipe.cli.help.layout import width
from taskrecipe.description import DescribedImage, DescribedText, Piece, Role
from taskrecipe.previews.image_files import draw_shapes, encode_png, show_inline
from taskrecipe.previews.pieces import MEANINGS, find_roles, read_piece, read_token
from taskrecipe.previews.tables import Table, make_tables
from taskrecipe.system.terminal import printable

if TYPE_CHECKING:
    from taskrecipe.previews.examples import Example
    from taskrecipe.previews.preview import Preview

MOST_PIECES = 600
"""Tokens of a line that are printed; the page shows more."""


class Look(NamedTuple):
    """How a role is shown: in color, or between two marks."""

    style: str
    before: str = ""
    after: str = ""


LOOKS: dict[Role, Look] = {
    "context": Look(""),
    "trained": Look("green", "«", "»"),
    "target": Look("bold cyan", "<<", ">>"),
    "masked": Look("bold magenta", "{", "}"),
    "special": Look("dim"),
    "padding": Look("dim italic", "[", "]"),
    "cut": Look("red strike", "~~", "~~"),
}


def print_preview(preview: Preview, files: Mapping[int, Path] | None) -> None:
    """Print examples, statistics and advice on stdout. `files` are the images that were written, by example."""
    console = Console(file=sys.stdout, highlight=False, emoji=False, markup=False, width=width())
    console.print(_describe_title(preview), style="bold")
    for message in preview.warnings:
        console.print(printable(f"warning: {message}"), style="yellow")
    for number, example in enumerate(preview.examples):
        _print_example(console, example, preview.colors, (files or {}).get(number))
    _print_legend(console, preview.examples)
    for table in make_tables(preview.statistics, preview.order):
        _print_table(console, table)
    console.print()
    for advice in preview.advice:
        console.print(Text(f"advice: {printable(advice)}", style="cyan"))


def _describe_title(preview: Preview) -> str:
    parts = [preview.title, f"recipe {preview.recipe}", f"data: {preview.data}"]
    if preview.update:
        parts.append(f"update {preview.update.number} of {preview.statistics.updates} (epoch {preview.update.epoch})")
        parts.append(f"sha256 of its batches {str(preview.digest)[:16]}…")
    return printable(", ".join(parts))


def _print_example(console: Console, example: Example, colors: Mapping[str, str], file: Path | None) -> None:
    console.print()
    heading = f"{example.split} row {example.row}"
    heading += f", micro-batch {example.batch}" if example.batch else ""
    heading += f" – {example.source}" if example.source else ""
    console.print(printable(heading), style="bold")
    described = example.description
    if isinstance(described, DescribedText):
        for number, line in enumerate(described.lines):
            name = described.names[number] if number < len(described.names) else ""
            console.print(_render_line(name, line, _has_colors(console)))
    else:
        _print_image(console, described, colors, file)
    for name, value in described.facts.items():
        console.print(Text.assemble("  ", (printable(f"{name}: "), "bold"), printable(value)))


def _print_image(console: Console, described: DescribedImage, colors: Mapping[str, str], file: Path | None) -> None:
    if file is not None or not show_inline(encode_png(draw_shapes(described, colors)), console):
        size = "x".join(map(str, described.image.size))
        where = f", in {file}" if file else "; --html FILE or --images FOLDER shows it"
        console.print(printable(f"  image of {size} pixels{where}"))
    for shape in described.shapes:
        box = f" at {', '.join(f'{edge:.0f}' for edge in shape.box)}" if shape.box else ""
        console.print(printable(f"  {shape.label}{box}"))


def _render_line(name: str, line: list[Piece], color: bool) -> Text:
    text = Text(" ")
    if name:
        text.append(printable(f" {name}:"), style="bold")
    for run in join_pieces(line[:MOST_PIECES]):
        look = LOOKS[run.role]
        if color:
            text.append(" " if run.spaced else "")
            text.append(run.text, style=look.style)
            text.append(f"→{run.note}" if run.note else "", style="magenta" if run.role == "masked" else "yellow")
        else:
            note = f"→{run.note}" if run.role == "masked" and run.note else f"/{run.note}" if run.note else ""
            inside = f"{run.text}{note}"
            text.append(f"{' ' if run.spaced else ''}{look.before}{inside}{look.after}")
    if len(line) > MOST_PIECES:
        text.append(f" … {len(line) - MOST_PIECES} more tokens", style="dim")
    return text


class Run(NamedTuple):
    """Consecutive pieces of one role that are shown together."""

    text: str
    role: Role
    note: str
    spaced: bool
    """Whether there is a space before it."""


def join_pieces(line: list[Piece]) -> Iterator[Run]:
    """Join neighbors of one role. A dot shows where tokens meet within a word."""
    after_special = True
    for (role, note, _), pieces in groupby(enumerate(line), key=lambda item: _group(*item)):
        text, spaced = "", False
        for number, (_, piece) in enumerate(pieces):
            shown = read_piece(piece)
            begins = piece.surface is None or shown.startswith(" ") or after_special
            if number == 0:
                spaced = begins
            elif begins:
                text += " "
            text += shown.strip(" ") if begins else f"·{shown}"
            after_special = piece.surface is None
        yield Run(text, role, note, spaced)


def _group(number: int, piece: Piece) -> tuple[Role, str, int]:
    """Return what pieces are joined by. A piece with a note stands alone."""
    return piece.role, read_token(piece.note), number if piece.note else -1


def _print_legend(console: Console, examples: list[Example]) -> None:
    color = _has_colors(console)
    roles = find_roles([example.description for example in examples])
    shown = [role for role in roles if (LOOKS[role].style if color else LOOKS[role].before)]
    if not shown:
        return
    text = Text("\nlegend:")
    for role in shown:
        look = LOOKS[role]
        text.append("  ")
        text.append(MEANINGS[role] if color else f"{look.before}{MEANINGS[role]}{look.after}", style=look.style)
    console.print(text)


def _print_table(console: Console, table: Table) -> None:
    header, *rows = table.rows
    made = RichTable(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in header:
        made.add_column(printable(name) or table.title, overflow="fold")
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    with console.capture() as captured:
        console.print(made)
    console.print()
    for line in captured.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _has_colors(console: Console) -> bool:
    return console.is_terminal and not console.no_color
