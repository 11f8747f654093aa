"""What a sweep has found: `sweep.json` for programs, `best.toml` to train the best values, numbers over seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import tomlkit

from taskrecipe.errors import UsageError
from taskrecipe.report.sweep_page import write_sweep_page
from taskrecipe.run.handle import Run
from taskrecipe.spec.dump import to_toml
from taskrecipe.spec.key_path import KeyPath, has_value
from taskrecipe.spec.layers import merge_tables
from taskrecipe.sweeps.folder import BEST, SWEEP, SweepFolder
from taskrecipe.sweeps.plan import END, Planner, Trial
from taskrecipe.sweeps.settings import Settings
from taskrecipe.sweeps.space import Space, as_settings
from taskrecipe.sweeps.suggestions import measure_importance
from taskrecipe.sweeps.trial_runs import TrialRun


@dataclass(frozen=True)
class SweepOutcome:
    """A sweep in its folder, as `sweep.json` has it."""

    folder: Path
    facts: dict[str, Any]

    @property
    def metric(self) -> str:
        """The metric that decides."""
        return str(self.facts["metric"])

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Every trial: its number, values, state, value and runs."""
        return list(self.facts["trials"])

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial of those that trained to their end."""
        best: dict[str, Any] | None = self.facts["best"]
        return best

    @property
    def best_run(self) -> Run:
        """The first run of the best trial."""
        if self.best is None:
            raise UsageError(f"no trial of {self.folder} has trained to its end")
        return Run(self.folder / self.best["runs"][0]["name"])


@dataclass(frozen=True)
class Spread:
    """A metric over several seeds."""

    mean: float
    low: float | None
    """The lower end of the 95 % interval of the mean; None for a single run."""
    high: float | None
    deviation: float | None
    """The standard deviation between runs."""
    least: float
    most: float
    runs: int


def read_outcome(folder: str | Path) -> SweepOutcome:
    """Read what a sweep has found so far."""
    place = SweepFolder.open(Path(folder))
    facts = place.read_json(SWEEP)
    if facts is None:
        raise UsageError(f"{folder} has no {SWEEP}: the sweep has not come to its first result")
    return SweepOutcome(place.path, facts)


def write_outcome(folder: SweepFolder, settings: Settings, trials: Sequence[Trial], is_done: bool) -> SweepOutcome:
    """Write what a sweep has found so far, with its page. The planning lock is held."""
    outcome = SweepOutcome(folder.path, describe_sweep(settings, trials, is_done))
    folder.write_json(SWEEP, outcome.facts)
    if settings.kind == "sweep" and outcome.best is not None:
        folder.write_text(BEST, write_best(settings, trials[outcome.best["number"]], folder.path))
    if settings.kind == "sweep":
        write_sweep_page(folder.path, outcome.facts)
    return outcome


def describe_sweep(settings: Settings, trials: Sequence[Trial], is_done: bool) -> dict[str, Any]:
    """Return the content of sweep.json."""
    planner = Planner(settings.sweep, settings.direction)
    ranked = planner.finished(trials)
    states = {trial.number: _name_state(trial, is_done) for trial in trials}
    described = [_describe_trial(trial, states[trial.number]) for trial in trials]
    facts: dict[str, Any] = {
        "format": 1,
        "kind": settings.kind,
        "status": "finished" if is_done else "running",
        "file": settings.file,
        "recipe": settings.spec["recipe"],
        "data": "sample" if settings.is_sample else "own",
        "metric": settings.metric,
        "direction": settings.direction,
        "sweep": settings.sweep.model_dump(mode="json", by_alias=True),
        "trials": described,
        "best": described[ranked[0].number] if ranked else None,
        "ranking": [trial.number for trial in ranked],
        "rungs": _describe_rungs(planner, trials),
        "seconds": round(sum(run.seconds for trial in trials for run in trial.runs), 3),
    }
    if settings.kind == "sweep":
        facts["importance"] = _measure_importance(settings, planner, trials) if is_done else None
    facts["metrics"] = {name: vars(spread) for name, spread in spread_metrics(ranked[0].runs if ranked else []).items()}
    return facts


def spread_metrics(runs: Sequence[TrialRun]) -> dict[str, Spread]:
    """Return each metric of runs that differ in their seed, with its mean, interval and spread."""
    names = [name for name in (runs[0].metrics if runs else {}) if all(name in run.metrics for run in runs)]
    return {name: spread_values([run.metrics[name] for run in runs]) for name in names}


def spread_values(values: Sequence[float]) -> Spread:
    """Return the mean of values, with the 95 % interval by Student's t."""
    from taskrecipe.comparison.statistics import mean_interval

    interval, deviation = mean_interval(values), stdev(values) if len(values) > 1 else None
    low, high = (interval.low, interval.high) if interval else (None, None)
    return Spread(fmean(values), low, high, deviation, min(values), max(values), len(values))


def _name_state(trial: Trial, is_done: bool) -> str:
    if trial.has_failed:
        return "failed"
    if trial.is_finished:
        return "finished"
    return "pruned" if is_done else "paused" if trial.is_paused else "begun"


def _describe_trial(trial: Trial, state: str) -> dict[str, Any]:
    return {
        "number": trial.number,
        "values": trial.values,
        "state": state,
        "value": trial.value,
        "updates": max((run.updates for run in trial.runs), default=0),
        "error": next((run.error for run in trial.runs if run.error), None),
        "runs": [
            {
                "name": run.name,
                "seed": run.seed,
                "value": run.value,
                "updates": run.updates,
                "total": run.total,
                "metrics": run.metrics,
                "curve": [[evaluation.step, evaluation.best] for evaluation in run.evaluations],
                "seconds": round(run.seconds, 3),
            }
            for run in trial.runs
        ],
    }


def _describe_rungs(planner: Planner, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    if planner.sweep.pruner != "halving":
        return []
    return [
        {"share": planner.shares[rung], "trials": [trial.number for trial in survivors]}
        for rung, survivors in planner.rungs(trials)
    ]


def _measure_importance(settings: Settings, planner: Planner, trials: Sequence[Trial]) -> dict[str, float] | None:
    """Measure at the first rung, which all trials have reached; without rungs, at the end."""
    share = planner.shares[0]
    values = {
        trial.number: (trial.values, value)
        for trial in trials
        if not trial.has_failed and (value := trial.value if share == END else trial.value_at(share)) is not None
    }
    return measure_importance(Space.of(settings.sweep), values)


# best.toml ------------------------------------------------------------------------------------------


def write_best(settings: Settings, trial: Trial, folder: Path) -> str:
    """Return a spec with the best values, that extends what the sweep's file extends."""
    own = settings.own
    for key in trial.values:
        top = key.split(".")[0]
        if isinstance(settings.given.get(top), list) and top not in own:
            own = {**own, top: settings.given[top]}  # a child replaces a list as a whole
    values = merge_tables(own, as_settings(trial.values), by_index=True)
    searched = {tuple(key.split(".")) for key in trial.values}

    def find_origin(path: KeyPath) -> str:
        if tuple(map(str, path)) in searched:
            return f"trial {trial.number}"
        return "as in the sweep" if has_value(own, path) else ""

    note = f"The best of {folder.name}: trial {trial.number}, {settings.metric} {trial.value:.6g}."
    head = tomlkit.document()
    head.add(tomlkit.comment(note))
    if settings.is_sample:
        head.add(tomlkit.comment("It was found on sample data, which says nothing about the task."))
    if settings.parent is not None:
        head.add("extends", tomlkit.item(os.path.relpath(settings.parent, folder)))
    return tomlkit.dumps(head) + to_toml(values, find_origin)
