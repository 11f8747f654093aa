"""`recipe migrate`: older specs made new."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from taskrecipe.core.errors import SpecError
from taskrecipe.core.spec.migrate import migrate as rewrite
from taskrecipe.core.spec.spec import SPEC_VERSION


def migrate(paths: Sequence[Path]) -> None:
    """Rewrite each file that needs it; those that can't be are all reported, and don't hold up the others."""
    problems = []
    for path in paths:
        try:
            changed = rewrite(path)
        except SpecError as error:
            problems += error.problems
            continue
        typer.echo(f"{path}: {'rewritten for' if changed else 'is'} spec_version {SPEC_VERSION}")
    if problems:
        raise SpecError(problems)
