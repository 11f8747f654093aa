"""`recipe evaluate`: measure a trained run again."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.errors import NotReproducedError
from taskrecipe.system.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console

    from taskrecipe.use.evaluate import Progress, RunEvaluation
    from taskrecipe.use.groups import Group


WIDEST = 10_000
"""Characters of a line of a table: a terminal may break a long line, numbers must not be cut."""


def evaluate(
    folder: Path,
    *,
    at: str,
    split: str | None,
    data: list[Path],
    by: str | None,
    evidence: Path | None,
    tolerance: float,
    as_json: bool,
) -> None:
    """Print the metrics of a run's weights. Raise an error if they are not as they were logged."""
    from taskrecipe.use.evaluate import evaluate_run

    with _show_progress() as progress:
        found = evaluate_run(
            folder,
            at=at,
            split=split,
            data=data or None,
            by=by,
            evidence=evidence,
            tolerance=tolerance,
            progress=progress,
        )
    for warning in found.warnings:
        print(f"warning: {printable(warning)}", file=sys.stderr)
    if as_json:
        print(json.dumps(_replace_nan(found.to_json()), indent=2))
    else:
        _print_report(found)
    _require_equal(found)


def _print_report(found: RunEvaluation) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    rows = ", ".join(f"{count:,} rows of {split}" for split, count in found.rows.items())
    weights = f"weights after update {found.step}" if found.step is not None else "exported weights"
    _print(console, f"{found.run}: {weights} ({found.at}), {rows}")
    _print_metrics(console, found)
    if found.by:
        _print_groups(console, found.by)
    for path in found.evidence:
        _print(console, f"written: {path}")
    if found.equal_to_log:
        count = len(found.logged)
        _print(console, f"all {count} metrics are equal to the logged ones" if count > 1 else "equal to the logged one")
    elif found.equal_to_log is None:
        _print(console, "nothing was logged for these weights and rows, so there is nothing to compare with")


def _print_metrics(console: Console, found: RunEvaluation) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("metric", "value", "95 % interval", "logged"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")
    for name, value in found.metrics.items():
        logged = _show(found.logged[name]) if name in found.logged else ""
        table.add_row(Text(printable(name)), _show(value), _show_interval(found.intervals.get(name)), logged)
    console.print(table)


def _print_groups(console: Console, groups: dict[str, Group]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = list(dict.fromkeys(name for group in groups.values() for name in group.metrics))
    table = Table(box=None, pad_edge=False)
    for heading in ("value", "rows", *names):
        table.add_column(Text(printable(heading)), justify="left" if heading == "value" else "right", no_wrap=True)
    for value, group in groups.items():
        numbers = [_show_both(group, name) for name in names]
        table.add_row(Text(printable(value)), f"{group.rows:,}", *numbers)
    console.print()
    Console(highlight=False, emoji=False, width=WIDEST).print(table)


def _show_both(group: Group, name: str) -> str:
    if name not in group.metrics:
        return ""
    interval = _show_interval(group.intervals.get(name))
    return f"{_show(group.metrics[name])} ({interval})" if interval else _show(group.metrics[name])


def _show(value: float) -> str:
    return f"{value:.4f}"


def _show_interval(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f"{_show(interval[0])} to {_show(interval[1])}"


def _print(console: Console, text: str) -> None:
    console.print(printable(text), markup=False)


def _require_equal(found: RunEvaluation) -> None:
    if not found.differences:
        return
    lines = [f"the metrics of the weights after update {found.step} are not those that were logged:"]
    lines += [f"  {difference}" for difference in found.differences]
    if found.changed_data:
        lines.append(f"the rows of {', '.join(found.changed_data)} have changed since the run read them")
    else:
        lines.append("the rows are the same; another device or other versions compute slightly different numbers: see")
        lines.append("environment.json, and allow for it with --tolerance 1e-4")
    raise NotReproducedError("\n".join(lines))


def _replace_nan(value: object) -> object:
    """Replace numbers that JSON doesn't have by null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _replace_nan(item) for name, item in value.items()}
    return [_replace_nan(item) for item in value] if isinstance(value, list | tuple) else value


@contextmanager
def _show_progress() -> Iterator[Progress | None]:
    """Yield what moves a progress bar on a terminal; None elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress
    from rich.console import Console

    columns = (progress.TextColumn("{task.description}", markup=False), progress.BarColumn())
    further = (progress.MofNCompleteColumn(), progress.TimeRemainingColumn())
    with progress.Progress(*columns, *further, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda split, done, total: bar.update(task, description=printable(split), completed=done, total=total)
