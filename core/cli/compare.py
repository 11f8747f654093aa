"""`recipe compare`: print what differs between runs, and whether one is better."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from taskrecipe.cli.diff import print_spec_differences
from taskrecipe.cli.help.layout import print_columns, print_entries, print_heading, print_paragraph
from taskrecipe.cli.help.numbers import format_change, format_number, format_p_value, format_range, format_value
from taskrecipe.comparison.conditions import ConditionDifference
from taskrecipe.comparison.metric_differences import MetricDifference
from taskrecipe.comparison.row_changes import ChangedRow, RowChanges
from taskrecipe.comparison.run_comparison import Comparison, SideComparison, compare
from taskrecipe.comparison.sides import ComparedRun, Side
from taskrecipe.system.secrets import to_json

LONGEST_CELL = 40
LONGEST_TEXT = 400
DIGEST = 12
"""Characters that are shown of a sha256 or a commit."""


def print_comparison(folders: Sequence[Path], *, rows: int, as_json: bool) -> None:
    """Compare runs and print the result."""
    found = compare(*folders, rows=rows)
    if as_json:
        typer.echo(to_json(found.to_json(), indent=2))
        return
    names = [str(run.summary.folder) for run in found.runs]
    _print_runs(found)
    for note in found.notes:
        print_paragraph(note, 2, "! ")
    typer.echo()
    if found.spec:
        print_spec_differences(found.spec, names)
    else:
        typer.echo("The specs are the same.")
    typer.echo()
    _print_conditions(found.conditions, names)
    for group in found.seeds:
        _print_seeds(group)
    for one in found.comparisons:
        _print_side(one)


def _print_runs(found: Comparison) -> None:
    rows = [
        [
            str(run.summary.folder),
            run.summary.state + (", the baseline" if run is found.runs[0] else ""),
            _show_best(run),
            format_value(run.seed),
        ]
        for run in found.runs
    ]
    print_columns(["RUN", "STATE", "BEST", "SEED"], rows)


def _show_best(run: ComparedRun) -> str:
    best = run.summary.best
    if best is None or best.metric is None or best.value is None:
        return "–"
    return f"{best.metric} {format_number(best.value)} after update {best.step}"


def _print_conditions(found: Sequence[ConditionDifference], names: Sequence[str]) -> None:
    if not found:
        typer.echo("The data, model files, packages, processes, machine and git state are the same.")
        return
    print_heading("Other conditions that differ")
    rows = [[one.subject, one.key, *(_show_fact(value) for value in one.values)] for one in found]
    print_columns(["SUBJECT", "KEY", *names], rows, indent=2)


def _show_fact(value: Any) -> str:
    text = format_value(value)
    is_digest = len(text) in (40, 64) and all(character in "0123456789abcdef" for character in text)
    return text[:DIGEST] if is_digest else _shorten(text, LONGEST_CELL)


def _print_seeds(group: Side) -> None:
    typer.echo()
    seeds = ", ".join(format_value(run.seed) for run in group.runs)
    print_heading(f"{group.name}: {len(group.runs)} runs that differ in their seed only ({seeds})")
    rows = []
    for metric in group.first.metrics:
        mean, interval = group.mean(metric), group.interval(metric)
        if mean is not None:
            half = f" ± {format_number((interval.high - interval.low) / 2)}" if interval else ""
            rows.append([metric, f"{format_number(mean)}{half}"])
    print_columns(["METRIC", "MEAN ± 95 % INTERVAL"], rows, indent=2)


# One side against the baseline ----------------------------------------------------------------------


def _print_side(one: SideComparison) -> None:
    typer.echo()
    print_heading(f"{one.second.name} against {one.first.name}")
    for note in one.notes:
        print_paragraph(note, 4, "  ! ")
    if not one.metrics:
        typer.echo("  they have no metric in common")
        return
    header = ["METRIC", one.first.name, one.second.name, "DIFFERENCE", "95 % INTERVAL", "P"]
    print_columns(header, [_make_row(metric) for metric in one.metrics], indent=2)
    typer.echo()
    _print_verdicts(one.metrics)
    for changes in one.rows:
        _print_rows(changes, (one.first.name, one.second.name))


def _make_row(one: MetricDifference) -> list[str]:
    p_value = "–" if one.p_value is None else format_p_value(one.p_value).removeprefix("p = ").removeprefix("p ")
    numbers = format_number(one.first), format_number(one.second), format_change(one.difference)
    return [one.metric, *numbers, _show_interval(one) or "–", p_value]


def _show_interval(one: MetricDifference) -> str | None:
    return format_range(one.interval.low, one.interval.high) if one.interval else None


def _print_verdicts(metrics: Sequence[MetricDifference]) -> None:
    """Say in words which differences are significant, then how the numbers were computed."""
    unclear = {"no clear difference": "no clear difference", "unknown": "not known whether it matters"}
    for one in metrics:
        if one.verdict not in unclear:
            print_paragraph(f"{one.verdict}: {_describe_metric(one)}", 4, "  ")
    for verdict, words in unclear.items():
        if names := [one.metric for one in metrics if one.verdict == verdict]:
            print_paragraph(f"{words}: {', '.join(names)}", 4, "  ")
    ways: dict[str, list[str]] = {}
    for one in metrics:
        how = "; ".join(text for text in (one.method, one.reason) if text)
        ways.setdefault(how, []).append(one.metric)
    for how, names in ways.items():
        print_paragraph(f"{', '.join(names)}: {how}", 4, "  ")


def _describe_metric(one: MetricDifference) -> str:
    facts = [f"{one.metric} {format_change(one.difference)}", f"95 % interval {_show_interval(one)}"]
    return ", ".join([*facts, format_p_value(one.p_value)] if one.p_value is not None else facts)


def _print_rows(changes: RowChanges, names: tuple[str, str]) -> None:
    typer.echo()
    if changes.measure == "correct":
        words = f"{changes.fixed} rows fixed, {changes.broken} broken, {changes.unchanged} as before"
    else:
        words = f"{changes.fixed} rows better by {changes.measure}, {changes.broken} worse, {changes.unchanged} equal"
    print_heading(f"Rows of {changes.split}: {words}")
    for example in changes.examples:
        _print_example(example, changes.measure, names)


def _print_example(example: ChangedRow, measure: str, names: tuple[str, str]) -> None:
    words = {"fixed": "fixed", "broken": "broken"} if measure == "correct" else {"fixed": "better", "broken": "worse"}
    place = f" ({example.source})" if example.source else ""
    typer.echo()
    print_paragraph(f"{words[example.change]}: row {example.row}{place}", 4, "  ")
    answers = [("reference", example.reference), (names[0], example.first), (names[1], example.second)]
    inputs = example.input.items() if isinstance(example.input, dict) else [("input", example.input)]
    print_entries([(f"  {name}", [_show_text(value)]) for name, value in [*inputs, *answers] if value is not None])


def _show_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _shorten(text.replace("\n", " "), LONGEST_TEXT)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
