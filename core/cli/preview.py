"""`recipe preview`: rows as the model sees them, numbers about all rows, and advice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from taskrecipe import DataError, Preview, UsageError, preview
from taskrecipe.system.terminal import printable


def show_preview(
    target: Path, options: dict[str, Any], *, rows: str | None, html: Path | None, images: Path | None, as_json: bool
) -> None:
    """Print a preview as text or JSON, and write its page and images. Raise if nothing would be trained on."""
    made = preview(target, rows=_read_numbers(rows), **options)
    if as_json:
        typer.echo(json.dumps(made.to_json(), indent=2))
    else:
        _print(made, images)
    if html is not None:
        _write_page(made, html, quiet=as_json)
    if made.problem:
        raise DataError(f"nothing would be trained on: {made.problem}")


def _read_numbers(rows: str | None) -> list[int] | None:
    if rows is None:
        return None
    try:
        return [int(number) for number in rows.split(",")]
    except ValueError:
        raise UsageError(f"--rows takes numbers of rows, such as 17,203, not {printable(rows)!r}") from None


def _print(made: Preview, images: Path | None) -> None:
    from taskrecipe.cli.preview_text import print_preview
    from taskrecipe.previews.image_files import write_images

    print_preview(made, write_images(made, images) if images is not None else None)


def _write_page(made: Preview, path: Path, quiet: bool) -> None:
    from taskrecipe.system import atomic_files

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.replace(path, made.html().encode())
    except OSError as error:
        raise UsageError(f"{printable(str(path))} can't be written: {error.strerror}") from None
    if not quiet:
        typer.echo(f"page: {printable(str(path))}")
