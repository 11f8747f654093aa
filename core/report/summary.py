"""What a run was and how it ended, in a few facts and one table."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskrecipe.report.history import Moment, as_number
from taskrecipe.report.run_files import RunFiles, differing_keys, read_weights
from taskrecipe.report.table import Cell, Table
from taskrecipe.system.quantities import format_bytes, format_duration, format_number

MOST_KEYS = 12
"""Differing keys that are shown of several runs."""

PYTHON = """\
from taskrecipe import Run

run = Run({folder!r})
model = run.model()    # the best weights
recipe = run.recipe    # with its processor and labels"""


@dataclass(frozen=True)
class Summary:
    """The head of a run's report."""

    name: str
    status: str
    sentence: str
    sample: str | None
    error: str | None
    facts: list[tuple[str, str, str]]
    """A name, a value, and something small about it."""
    metrics: Table | None
    environment: list[tuple[str, str]]
    weights: list[tuple[str, str]]
    """Checkpoints and the sha256 of their weights."""
    rows: list[tuple[str, str]]
    """Splits and the fingerprint of their rows."""
    commands: list[tuple[str, str]]
    """What to do next, and the command for it."""
    python: str
    warnings: list[str] = field(default_factory=list)


def summarize_run(run: RunFiles) -> Summary:
    """Make the head of a run's report."""
    return Summary(
        name=run.name,
        status=run.status,
        sentence=_describe_task(run),
        sample=run.history.sample_reason,
        error=str(run.results["error"]) if run.status == "failed" and run.results.get("error") else None,
        facts=[*_quality_facts(run), *_size_facts(run)],
        metrics=tabulate_metrics(run),
        environment=describe_environment(run),
        weights=list(read_weights(run.folder).items()),
        rows=[(str(split), str(digest)) for split, digest in _table(run.environment, "data").items()],
        commands=suggest_commands(run),
        python=PYTHON.format(folder=str(run.folder)),
        warnings=[*run.history.warnings, *run.notes],
    )


def tabulate_metrics(run: RunFiles) -> Table | None:
    """Tabulate every metric of the best and of the last evaluation, with its interval where there is one."""
    best, evaluations = run.history.best, run.history.evaluations
    if not evaluations:
        return None
    last = evaluations[-1]
    best = best or last
    intervals, metrics = _intervals(run), _metrics_of(run, best)
    names = [run.history.best_metric, *(name for name in metrics if name != run.history.best_metric)]
    rows: list[list[Cell]] = [
        [
            name,
            as_number(metrics.get(name)),
            "{} to {}".format(*map(format_number, intervals[name])) if name in intervals else "–",
            as_number(last.record["metrics"].get(name)),
        ]
        for name in names
        if name in metrics
    ]
    columns = ["metric", f"best (update {best.step:,})", "95 % interval", f"last (update {last.step:,})"]
    if not intervals:
        rows, columns = [[*row[:2], row[3]] for row in rows], [*columns[:2], columns[3]]
    note = f"Best by {run.history.best_metric}."
    return Table(f"metrics-{run.name}", "Metrics", columns, rows, note)


def _metrics_of(run: RunFiles, best: Moment) -> dict[str, Any]:
    """Return the metrics of the best evaluation, then those of splits that were evaluated once, at the end."""
    kept = _table(run.results, "best")
    final = _table(kept, "metrics") if kept.get("step") == best.step else {}
    return {**best.record["metrics"], **final}


def compare_runs(runs: Sequence[RunFiles]) -> Table:
    """Tabulate several runs: the keys of the spec in which they differ, and how well each did."""
    keys = differing_keys(runs)
    metrics = list(dict.fromkeys(run.history.best_metric for run in runs))
    rows: list[list[Cell]] = []
    for run in runs:
        best = run.history.best
        found = best.record["metrics"] if best else {}
        values = [run.value(key) or "–" for key in keys[:MOST_KEYS]]
        numbers = [as_number(found.get(metric)) for metric in metrics]
        rows.append([run.name, run.status, *values, *numbers, best.step if best else None, run.history.seconds])
    columns = ["run", "status", *keys[:MOST_KEYS], *metrics, "best update", "seconds"]
    more = f" {len(keys) - MOST_KEYS} more keys differ." if len(keys) > MOST_KEYS else ""
    note = f"Columns between status and {metrics[0] if metrics else 'best'} are the keys of the spec that differ.{more}"
    return Table("runs", "Runs", columns, rows, note if keys else "The specs are the same.")


def name_in_legend(run: RunFiles, runs: Sequence[RunFiles]) -> str:
    """Return a run's name with the values of the first few keys in which the runs differ."""
    keys = [key for key in differing_keys(runs) if key not in ("name", "log.every")][:3]
    values = ", ".join(f"{key.rpartition('.')[2]} {run.value(key) or '–'}" for key in keys)
    return f"{run.name} ({values})" if values else run.name


def describe_environment(run: RunFiles) -> list[tuple[str, str]]:
    """Return what a run was started with, as names and values."""
    about = run.environment
    machine, git = _table(about, "machine"), _table(about, "git")
    commit = f"{git['commit']}{' with changes' if git.get('dirty') else ''}" if git.get("commit") else None
    memory = as_number(machine.get("memory_bytes"))
    facts = {
        "command": shlex.join(_shorten(str(word)) for word in about.get("command") or []),
        "started": about.get("started"),
        "user": about.get("user"),
        "host": machine.get("host"),
        "machine": ", ".join(str(part) for part in (machine.get("platform"), machine.get("cpu")) if part),
        "cores": machine.get("cores"),
        "memory": format_bytes(memory) if memory else None,
        "accelerators": ", ".join(str(one.get("name")) for one in machine.get("accelerators") or []) or "none",
        "processes": about.get("processes"),
        "commit": commit,
        "branch": git.get("branch"),
        "python": about.get("python"),
        **{f"{name}": version for name, version in _table(about, "packages").items()},
    }
    return [(name, str(value)) for name, value in facts.items() if value not in (None, "")] if about else []


def suggest_commands(run: RunFiles) -> list[tuple[str, str]]:
    """Return the commands to continue with, to copy."""
    folder = shlex.quote(str(run.folder))
    watch = [("Watch it", f"recipe watch {folder}")] if run.status == "running" else []
    resume = [("Continue it", f"recipe resume {folder}")] if run.status not in ("running", "finished") else []
    use = [
        ("Predict new rows", f"recipe predict {folder} INPUT -o predictions.jsonl"),
        ("Evaluate again", f"recipe evaluate {folder}"),
    ]
    return [
        *watch,
        *resume,
        *(use if (run.folder / "model").exists() else []),
        ("Train it again", f"recipe run {shlex.quote(str(run.folder / 'spec.toml'))}"),
        ("Compare weights bit by bit", f"recipe fingerprint {folder} --at best"),
    ]


def _describe_task(run: RunFiles) -> str:
    task = run.value("task.name")
    recipe = f"{run.value('recipe') or run.results.get('recipe') or 'A run'}{f' ({task})' if task else ''}"
    model = run.value("model.name") or run.value("model.type")
    if run.history.sample_reason is not None:
        return f"{recipe} with a tiny model on sample data"
    data = run.value("data.path") or next(
        (Path(one.value.strip('"[]')).name for one in run.spec if one.key.startswith("data.files")), None
    )
    return f"{recipe}{f', {model}' if model else ''}{f', trained on {data}' if data else ''}"


def _quality_facts(run: RunFiles) -> list[tuple[str, str, str]]:
    best, metric = run.history.best, run.history.best_metric
    value = as_number(best.record["metrics"].get(metric)) if best else None
    if best is None or value is None:
        return []
    interval = _intervals(run).get(metric)
    spread = " to ".join(map(format_number, interval)) if interval else f"after update {best.step:,}"
    return [(f"best {metric}", format_number(value), f"95 %: {spread}" if interval else spread)]


def _size_facts(run: RunFiles) -> list[tuple[str, str, str]]:
    history, results = run.history, run.results
    total = history.total
    count = f"{history.step / history.per_epoch:.3g}" if history.per_epoch else ""
    epochs = f"{count} epoch{'s' if count != '1' else ''}" if count else ""
    facts = [("updates", f"{history.step:,}", f"of {total:,}{f', {epochs}' if epochs else ''}" if total else epochs)]
    if history.seconds:
        resumed = (
            f"resumed {history.resumes} times"
            if history.resumes > 1
            else "resumed once"
            if history.resumes
            else "without loading"
        )
        facts.append(("time", format_duration(history.seconds), resumed))
    rows = _table(results, "rows")
    if "train" in rows:
        others = ", ".join(f"{split} {count:,}" for split, count in rows.items() if split != "train")
        facts.append(("training rows", f"{rows['train']:,}", others))
    elif "data" in history.facts:
        facts.append(("data", history.facts["data"], ""))
    parameters = as_number(results.get("parameters"))
    if parameters:
        facts.append(("parameters", _short_count(parameters), f"{parameters:,.0f}"))
    elif "model" in history.facts:
        facts.append(("model", history.facts["model"], ""))
    device = history.facts.get("device") or results.get("device")
    if device:
        name, _, rest = str(device).partition(", ")
        facts.append(("device", name, rest or f"{results.get('processes', 1)} process(es)"))
    return facts


def _short_count(number: float) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"


def _intervals(run: RunFiles) -> dict[str, tuple[float, float]]:
    """Return the interval of each metric by the name under which it is reported."""
    return {
        name if evidence.split == "validation" else f"{evidence.split}/{name}": interval
        for evidence in run.evidence
        for name, interval in evidence.intervals.items()
    }


def _table(values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _shorten(word: str) -> str:
    """Return the name of the command without its folder."""
    return Path(word).name if word.endswith("/recipe") else word
