"""`recipe schema`: the JSON Schema of specs, for editors."""

from __future__ import annotations

import json

import typer

from taskrecipe.plugins.registry import find_broken_plugins, installed
from taskrecipe.spec.diagnostics import make_printable
from taskrecipe.spec.schema import build_schema


def print_schema(recipe: str | None, *, part: bool = False) -> None:
    """Print the schema of all specs, or of one recipe's; with `part`, of files that other specs extend."""
    broken = find_broken_plugins(installed())
    for error in broken.values():
        typer.echo(f"warning: any table of it is allowed: {make_printable(str(error))}", err=True)
    typer.echo(json.dumps(build_schema(recipe, broken=broken, part=part), indent=2))
