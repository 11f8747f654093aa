"""`recipe migrate`: rewrite specs of older versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from taskrecipe.errors import SpecError
from taskrecipe.spec.diagnostics import make_printable
from taskrecipe.spec.migrate import migrate as rewrite
from taskrecipe.spec.spec import SPEC_VERSION
from taskrecipe.system.secrets import to_json


def migrate(paths: Sequence[Path], *, as_json: bool = False) -> None:
    """Rewrite each file that needs it. Files that can't be rewritten are reported after all others are done."""
    problems, rewritten = [], []
    for path in paths:
        try:
            changed = rewrite(path)
        except SpecError as error:
            problems += error.problems
            continue
        rewritten.append({"file": str(path), "rewritten": changed, "spec_version": SPEC_VERSION})
        if not as_json:
            state = "rewritten for" if changed else "is"
            typer.echo(f"{make_printable(str(path))}: {state} spec_version {SPEC_VERSION}")
    if as_json:
        typer.echo(to_json(rewritten, indent=2))
    if problems:
        raise SpecError(problems)
