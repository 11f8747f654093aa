"""`recipe runs`: a table of runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from taskrecipe.cli.help.layout import print_columns
from taskrecipe.cli.help.numbers import format_duration, format_number, format_value
from taskrecipe.comparison.run_summary import RunSummary
from taskrecipe.comparison.run_table import find_value, list_runs, require_known_keys
from taskrecipe.run.folder_names import RUNS
from taskrecipe.system.secrets import to_json
from taskrecipe.system.terminal import printable

SILENT = 600.0
"""Seconds without a line in the log after which the table says so."""


def print_runs(
    folders: Sequence[Path], *, where: Sequence[str], sort: str, columns: Sequence[str], as_json: bool
) -> None:
    """Print the runs in folders, one a line."""
    runs = list_runs(*folders, where=where, sort=sort)
    require_known_keys(runs, columns)
    if as_json:
        typer.echo(json.dumps([_describe(run, columns) for run in runs], indent=2, ensure_ascii=False))
        return
    if runs:
        header = ["NAME", "STATE", *(columns or ["RECIPE", "BEST", "UPDATES", "CREATED"])]
        print_columns(header, [_make_row(run, columns) for run in runs])
    else:
        places = ", ".join(f"{folder}/" for folder in folders or [RUNS])
        typer.echo(printable(f"no runs in {places}{' match' if where else ''}"), err=True)


def _describe(run: RunSummary, columns: Sequence[str]) -> dict[str, object]:
    """Return a run as JSON: all its facts, or with `columns` its folder and those keys."""
    if not columns:
        return dict(json.loads(to_json(run.to_json())))
    return {"folder": str(run.folder), **{key: find_value(run, key) for key in columns}}


def _make_row(run: RunSummary, columns: Sequence[str]) -> list[str]:
    first = [_show_path(run), _show_state(run)]
    if columns:
        return [*first, *(format_value(find_value(run, key)) for key in columns)]
    return [*first, format_value(run.recipe), _show_best(run), _show_progress(run), _show_created(run)]


def _show_path(run: RunSummary) -> str:
    """Return the folder, without the usual `runs/`."""
    return str(run.folder.relative_to(RUNS)) if run.folder.is_relative_to(RUNS) else str(run.folder)


def _show_state(run: RunSummary) -> str:
    if run.state == "damaged":
        return f"damaged: {'; '.join(run.problems)}"
    if run.silent_seconds is not None and run.silent_seconds > SILENT and run.holder:
        return f"training on {run.holder['host']}, silent for {format_duration(run.silent_seconds)}"
    if run.state in ("queued", "requeued"):
        return printable(f"{run.state}, job {run.job.get('job')}")
    return run.state


def _show_best(run: RunSummary) -> str:
    best = run.best
    if best is None or best.metric is None or best.value is None:
        return "–"
    return f"{best.metric} {format_number(best.value)}"


def _show_progress(run: RunSummary) -> str:
    if run.state == "finished" or not run.total_updates:
        return str(run.updates)
    return f"{run.updates}/{run.total_updates} ({run.updates / run.total_updates:.0%})"


def _show_created(run: RunSummary) -> str:
    from datetime import datetime

    try:
        return datetime.fromisoformat(run.created or "").astimezone().strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return "–"
