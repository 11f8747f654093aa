"""The sides of a comparison: single runs, or runs that differ in their seed only, taken together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from taskrecipe.comparison.evidence import Evidence, read_evidence
from taskrecipe.comparison.run_summary import RunSummary
from taskrecipe.comparison.spec_differences import SpecValues, read_spec_values
from taskrecipe.comparison.statistics import Interval, mean_interval
from taskrecipe.recipe import reported_name
from taskrecipe.run.resume_guard import is_harmless

SEED = "seed"


class ComparedRun:
    """A run with its spec and evidence."""

    def __init__(self, summary: RunSummary) -> None:
        self.summary = summary
        self.evidence, self.problems = read_evidence(summary.folder)

    @cached_property
    def spec(self) -> SpecValues:
        """The run's spec, defaults included."""
        return read_spec_values(self.summary.folder)

    @property
    def seed(self) -> Any:
        """The seed of the run."""
        return self.spec.values.get(SEED)

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the exported weights by reported name; of a run that still trains, the best so far."""
        best = self.summary.best
        found = dict(best.metrics) if best else {}
        for evidence in self.evidence.values():
            found |= {reported_name(evidence.split, metric): value for metric, value in evidence.metrics.items()}
        return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


@dataclass(frozen=True)
class Side:
    """One run, or several that differ in their seed only."""

    name: str
    runs: tuple[ComparedRun, ...]

    @property
    def first(self) -> ComparedRun:
        """The run whose rows are compared."""
        return self.runs[0]

    def seed_values(self, metric: str) -> dict[str, float]:
        """Return a metric for each seed. Runs with the same seed are no further evidence: their mean counts once."""
        values: dict[str, list[float]] = {}
        for run in self.runs:
            if metric in run.metrics:
                values.setdefault(str(run.seed), []).append(run.metrics[metric])
        return {seed: float(np.mean(found)) for seed, found in values.items()}

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric over seeds; None where no run has it."""
        values = list(self.seed_values(metric).values())
        return float(np.mean(values)) if values else None

    def interval(self, metric: str) -> Interval | None:
        """Return the interval of the mean over seeds; None for a single seed."""
        return mean_interval(list(self.seed_values(metric).values()))

    def evidence(self, split: str) -> Evidence | None:
        """Return the evidence of the first run on a split."""
        return self.first.evidence.get(split)


def make_sides(runs: Sequence[ComparedRun]) -> list[Side]:
    """Take runs that differ in their seed only together. If that leaves one side, each run is a side of its own."""
    groups: dict[str, list[ComparedRun]] = {}
    for run in runs:
        groups.setdefault(_key_without_seed(run.spec.values), []).append(run)
    chosen = list(groups.values()) if len(groups) > 1 else [[run] for run in runs]
    names = _name_sides([group[0] for group in chosen])
    return [Side(name, tuple(group)) for name, group in zip(names, chosen, strict=True)]


def find_seed_groups(sides: Sequence[Side]) -> list[Side]:
    """Return the groups of runs that differ in their seed only, of two or more runs."""
    if any(len(side.runs) > 1 for side in sides):
        return [side for side in sides if len(side.runs) > 1]
    runs = [side.first for side in sides]
    alike = len({_key_without_seed(run.spec.values) for run in runs}) == 1
    return [Side(sides[0].name, tuple(runs))] if alike and len(runs) > 1 else []


def _key_without_seed(values: Mapping[str, Any]) -> str:
    counted = {key: value for key, value in values.items() if key != SEED and not is_harmless(key)}
    return json.dumps(counted, sort_keys=True, default=str)


def _name_sides(runs: Sequence[ComparedRun]) -> list[str]:
    """Name each side by its run, or by its folder where two runs have one name."""
    names = [run.summary.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.summary.folder) for run in runs]
