"""`recipe diff`: the keys in which two specs differ."""

from __future__ import annotations

from pathlib import Path

import typer

from taskrecipe.cli.help.layout import print_columns, print_heading
from taskrecipe.cli.help.numbers import format_value
from taskrecipe.comparison.spec_differences import SpecDifference, diff_specs
from taskrecipe.system.secrets import to_json
from taskrecipe.system.terminal import printable


def diff(first: Path, second: Path, *, as_json: bool) -> int:
    """Print the keys in which two specs differ, and return the exit code: 0 if none does, else 1."""
    found = diff_specs(first, second)
    if as_json:
        shape = {"specs": [str(first), str(second)], "equal": not found}
        typer.echo(to_json({**shape, "differences": [one.to_json() for one in found]}, indent=2))
    elif found:
        print_spec_differences(found, [str(first), str(second)])
    else:
        typer.echo(printable(f"{first} and {second} resolve to the same values"))
    return 1 if found else 0


def print_spec_differences(found: list[SpecDifference], names: list[str]) -> None:
    """Print keys that differ, each value with where it came from; those that don't affect results apart."""
    groups = (
        ("Differences", [one for one in found if one.affects_results]),
        ("Differences that don't affect results", [one for one in found if not one.affects_results]),
    )
    for title, listed in groups:
        if listed:
            print_heading(title)
            print_columns(["KEY", *names], [[one.key, *_show_sides(one)] for one in listed], indent=2)


def _show_sides(one: SpecDifference) -> list[str]:
    pairs = zip(one.values, one.origins, strict=True)
    return ["not given" if origin is None else f"{format_value(value)}  ({origin})" for value, origin in pairs]
