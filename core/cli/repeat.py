"""`recipe repeat`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from taskrecipe.cli.help.layout import print_columns, print_heading
from taskrecipe.cli.help.numbers import format_number
from taskrecipe.cli.sweep import follow_search
from taskrecipe.system.secrets import to_json
from taskrecipe.system.terminal import printable


def repeat(
    spec: Path,
    options: dict[str, Any],
    *,
    out: Path | None,
    allow: Sequence[str],
    retry: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a spec with several seeds, and print each metric."""
    from taskrecipe.sweeps.sweep import open_repeat

    search = open_repeat(spec, out=out, allow=allow, retry=retry, **options)
    outcome = follow_search(search, quiet=quiet or as_json)
    if as_json:
        typer.echo(to_json(outcome.facts, indent=2))
    elif not quiet:
        _print_spreads(outcome.facts)
        typer.echo(printable(f"compare single runs: recipe runs {outcome.folder}"))


def _print_spreads(facts: dict[str, Any]) -> None:
    runs = facts["trials"][0]["runs"]
    print_heading(f"{len(runs)} runs, seeds {', '.join(str(run['seed']) for run in runs)}")
    rows = [
        [
            name,
            format_number(spread["mean"]),
            "–" if spread["low"] is None else f"{format_number(spread['low'])} to {format_number(spread['high'])}",
            "–" if spread["deviation"] is None else format_number(spread["deviation"]),
            f"{format_number(spread['least'])} to {format_number(spread['most'])}",
        ]
        for name, spread in facts["metrics"].items()
    ]
    print_columns(["METRIC", "MEAN", "95 % INTERVAL", "DEVIATION", "RANGE"], rows, indent=2)
