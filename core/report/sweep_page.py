"""The page of a sweep, in the style of a run's report: one file that needs nothing else to be opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskrecipe.report.chart import Chart
from taskrecipe.report.page import render_template
from taskrecipe.report.parallel import ParallelChart
from taskrecipe.report.sweep_charts import (
    chart_curves,
    chart_history,
    chart_importance,
    chart_parallel,
    chart_slices,
    searched_keys,
)
from taskrecipe.report.table import Cell, Table
from taskrecipe.run.folder_names import REPORT
from taskrecipe.system import atomic_files
from taskrecipe.system.quantities import format_duration, format_number

BEST = 10
"""Trials in the table of the best."""


@dataclass(frozen=True)
class RankedTrial:
    """A row of the table of the best trials."""

    name: str
    link: str | None
    value: str
    values: list[str]
    updates: str


@dataclass(frozen=True)
class SweepPage:
    """Everything that the template needs."""

    title: str
    status: str
    sentence: str
    is_sample: bool
    facts: list[tuple[str, str, str]]
    keys: list[str]
    metric: str
    best: list[RankedTrial]
    history: list[Chart]
    parallel: ParallelChart | None
    slices: list[Chart]
    trials: Table
    failures: list[str]
    commands: list[tuple[str, str]]


def write_sweep_page(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write the page of a sweep into its folder, and return its path."""
    page = render_template("sweep.html.jinja", build_sweep_page(folder, facts))
    atomic_files.replace(folder / REPORT, page.encode(errors="backslashreplace"))
    return folder / REPORT


def build_sweep_page(folder: Path, facts: Mapping[str, Any]) -> SweepPage:
    """Work out everything that the page shows."""
    charts = [chart_history(facts), chart_importance(facts), chart_curves(facts)]
    failed = [trial for trial in facts["trials"] if trial["state"] == "failed"]
    return SweepPage(
        title=folder.name,
        status=facts["status"],
        sentence=_describe(facts),
        is_sample=facts["data"] == "sample",
        facts=_list_facts(facts),
        keys=[key.key for key in searched_keys(facts)],
        metric=facts["metric"],
        best=_rank(folder, facts),
        history=[chart for chart in charts if chart is not None],
        parallel=chart_parallel(facts),
        slices=list(chart_slices(facts)),
        trials=_tabulate(facts),
        failures=[f"trial {trial['number']}: {trial['error'] or 'no finite value'}" for trial in failed],
        commands=_list_commands(folder, facts),
    )


def _describe(facts: Mapping[str, Any]) -> str:
    sweep = facts["sweep"]
    pruner = {"none": "", "median": ", pruned by the median", "halving": ", with halving"}
    seeds = f", {sweep['seeds']} seeds each" if sweep["seeds"] > 1 else ""
    how = f"{sweep['sampler']}{pruner[sweep['pruner']]}{seeds}"
    return f"A sweep of {facts['recipe']}: {len(facts['trials'])} trials by {how}"


def _list_facts(facts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    best = facts["best"]
    states = [trial["state"] for trial in facts["trials"]]
    runs = [run for trial in facts["trials"] for run in trial["runs"]]
    total = max((run["total"] or 0 for run in runs), default=0)
    done = sum(run["updates"] for run in runs)
    saved = 1 - done / sum(run["total"] or total for run in runs) if total else 0.0
    found = [(f"best {facts['metric']}", format_number(best["value"]), f"trial {best['number']}")] if best else []
    return [
        *found,
        ("trained to the end", str(states.count("finished")), f"of {len(states)} trials"),
        ("stopped early", str(states.count("pruned")), f"{saved:.0%} of all updates saved"),
        ("failed", str(states.count("failed")), ""),
        ("time of all runs", format_duration(facts["seconds"]), f"{done:,} updates"),
    ]


def _rank(folder: Path, facts: Mapping[str, Any]) -> list[RankedTrial]:
    trials = {trial["number"]: trial for trial in facts["trials"]}
    keys = searched_keys(facts)
    ranked = []
    for number in facts["ranking"][:BEST]:
        trial = trials[number]
        name = trial["runs"][0]["name"]
        link = f"{name}/{REPORT}" if (folder / name / REPORT).exists() else None
        values = [_show(trial["values"].get(key.key)) for key in keys]
        ranked.append(RankedTrial(name, link, format_number(trial["value"]), values, f"{trial['updates']:,}"))
    return ranked


def _tabulate(facts: Mapping[str, Any]) -> Table:
    keys = searched_keys(facts)
    rows: list[list[Cell]] = [
        [
            trial["number"],
            trial["state"],
            trial["value"],
            *(_as_cell(trial["values"].get(key.key)) for key in keys),
            trial["updates"],
            sum(run["seconds"] for run in trial["runs"]),
        ]
        for trial in facts["trials"]
    ]
    columns = ["trial", "state", facts["metric"], *(key.key for key in keys), "updates", "seconds"]
    return Table("trials", "All trials", columns, rows)


def _list_commands(folder: Path, facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    commands = [("List the trials", f"recipe runs {folder} --sort best")]
    if len(facts["ranking"]) > 1:
        first, second = (facts["trials"][number]["runs"][0]["name"] for number in facts["ranking"][:2])
        commands.append(("Compare the best two", f"recipe compare {folder / first} {folder / second}"))
    if facts["best"]:
        commands = [("Train the best values", f"recipe run {folder / 'best.toml'}"), *commands]
        commands.append(("Is it luck?", f"recipe repeat {folder / 'best.toml'} --seeds 5"))
    return commands


def _as_cell(value: Any) -> Cell:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _show(value)


def _show(value: Any) -> str:
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
