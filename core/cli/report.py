"""`recipe report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from taskrecipe.system.secrets import to_json


def report(folders: Sequence[Path], out: Path | None, png: Path | None, *, as_json: bool = False) -> None:
    """Write a report, or with `png` its figures, and print what was written."""
    from taskrecipe.report.write import write_pictures, write_report

    written = [write_report(folders, out)] if png is None or out is not None else []
    written += write_pictures(folders, png) if png is not None else []
    paths = [str(path) for path in written]
    typer.echo(to_json({"files": paths}) if as_json else "\n".join(paths))
