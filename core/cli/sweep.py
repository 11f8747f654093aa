"""`recipe sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from taskrecipe.cli.help.layout import print_columns, print_heading, print_table
from taskrecipe.cli.help.numbers import format_number, format_value
from taskrecipe.system.secrets import to_json
from taskrecipe.system.terminal import printable

if TYPE_CHECKING:
    from taskrecipe.sweeps.outcome import SweepOutcome
    from taskrecipe.sweeps.sweep import Search

SHOWN = 10
"""Trials that are printed at the end."""


def sweep(
    spec: Path,
    options: dict[str, Any],
    *,
    out: Path | None,
    allow: Sequence[str],
    retry: bool,
    dry: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Search, and print the best trials."""
    if dry:
        from taskrecipe.sweeps.cost import measure_sweep

        facts = measure_sweep(spec, **options)
        if as_json:
            typer.echo(to_json(facts, indent=2))
        else:
            print_table(list(facts.items()))
        return
    from taskrecipe.sweeps.sweep import open_sweep

    search = open_sweep(spec, out=out, allow=allow, retry=retry, **options)
    outcome = follow_search(search, quiet=quiet or as_json)
    if as_json:
        typer.echo(to_json(outcome.facts, indent=2))
    elif not quiet:
        _print_best(outcome)


def follow_search(search: Search, *, quiet: bool) -> SweepOutcome:
    """Work on a search until it is done, and show what happens."""
    if quiet:
        return search.finish()
    from taskrecipe.sweeps.display import SweepDisplay

    display = SweepDisplay(search.settings, search.folder.path)
    try:
        return search.finish(display.show)
    finally:
        display.close()


def _print_best(outcome: SweepOutcome) -> None:
    keys = list(outcome.facts["sweep"]["space"])
    trials = {trial["number"]: trial for trial in outcome.trials}
    ranked = [trials[number] for number in outcome.facts["ranking"][:SHOWN]]
    rows = [
        [trial["runs"][0]["name"], format_number(trial["value"]), *(format_value(trial["values"].get(k)) for k in keys)]
        for trial in ranked
    ]
    if rows:
        print_heading(f"The best of {len(trials)} trials by {outcome.metric}")
        print_columns(["TRIAL", outcome.metric, *keys], rows, indent=2)
    failed = [trial["number"] for trial in outcome.trials if trial["state"] == "failed"]
    if failed:
        typer.echo(f"failed: {', '.join(map(str, failed))}")
    folder = outcome.folder
    typer.echo(printable(f"report: {folder / 'report.html'}"))
    typer.echo(printable(f"train the best values again: recipe run {folder / 'best.toml'}"))
    typer.echo(printable(f"sweep folder: {folder}"))
