"""`recipe from-trainer`: write a spec for settings of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from taskrecipe.cli.new import write_new_spec
from taskrecipe.migration.trainer_spec import from_trainer as convert
from taskrecipe.spec.diagnostics import make_printable
from taskrecipe.system.secrets import to_json


def from_trainer(words: Sequence[str], recipe: str | None, out: Path | None, *, force: bool, as_json: bool) -> None:
    """Convert a file, or the words of a command line, and write or print the spec."""
    is_file = len(words) == 1 and not words[0].startswith("-") and not words[0].endswith(".py")
    made = convert(words[0] if is_file else list(words), recipe)
    if out is not None:
        made.move_to(out.parent)
        write_new_spec(out, made.text, force=force)
    if as_json:
        values = {"values": made.values, "origins": made.origins, "left_out": made.left_out}
        typer.echo(to_json({"file": str(out) if out else None, "spec": made.text, **values}, indent=2))
    elif out is None:
        typer.echo(made.text, nl=False)
    else:
        shown = make_printable(str(out))
        typer.echo(f"{shown} written; next: recipe validate {shown}")
