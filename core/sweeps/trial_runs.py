"""The runs of a sweep as their folders show them: how far each is, and what its evaluations found.

Nothing but these files decides what a sweep does next. So it does not matter which sweeper started a run, or how often
it was killed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from taskrecipe.run.folder_names import LOG, RESULTS
from taskrecipe.run.log import RunLog
from taskrecipe.run.pause import rung_update
from taskrecipe.sweeps.folder import FAILED, SweepFolder, file_state

Status = Literal["new", "begun", "paused", "finished", "failed"]
"""`begun`: it trains now, or it was interrupted and can be resumed."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run: after which update, and the best value of the decisive metric until then."""

    step: int
    best: float | None


@dataclass(frozen=True)
class TrialRun:
    """One run of a trial, by one of its seeds."""

    name: str
    seed: int
    status: Status = "new"
    updates: int = 0
    total: int | None = None
    evaluations: tuple[Evaluation, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of the best weights, once the run has finished."""
    seconds: float = 0.0
    """The time that it took, as far as its results say."""
    error: str | None = None
    error_kind: str | None = None

    @property
    def value(self) -> float | None:
        """The best value so far."""
        return self.evaluations[-1].best if self.evaluations else None

    def evaluation_at(self, share: float) -> Evaluation | None:
        """Return the evaluation that counts for a share of all updates; None if the run has not come that far.

        A run that has ended by itself before has reached every share.
        """
        if self.total is not None:
            wanted = rung_update(share, self.total)
            for evaluation in self.evaluations:
                if evaluation.step >= wanted and evaluation.step <= self.updates:
                    return evaluation
        return self.evaluations[-1] if self.status == "finished" and self.evaluations else None


def read_run(folder: SweepFolder, name: str, seed: int, metric: str) -> TrialRun:
    """Read the state of a run. What a process is writing meanwhile counts when it is written."""
    path = folder.run(name)
    state = file_state(path / LOG), file_state(path / RESULTS), file_state(folder.state / name / FAILED), path.exists()
    known = _cache.get(path)
    if known is None or known[0] != state:
        known = _cache[path] = state, _read_run(folder, name, seed, metric)
    return known[1]


_cache: dict[Path, tuple[Any, TrialRun]] = {}
"""Runs that were read before, each with the state of its files: a run that does nothing is read once."""


def _read_run(folder: SweepFolder, name: str, seed: int, metric: str) -> TrialRun:
    failure = folder.read_failure(name)
    path = folder.run(name)
    log, results = _parse_log(path / LOG, metric), _read_results(path)
    status: Status = "begun" if path.exists() else "new"
    if failure is not None:
        status = "failed"
    elif results.get("status") == "finished":
        status = "finished"
    elif results.get("paused"):
        status = "paused"
    best = results.get("best") or {}
    return TrialRun(
        name,
        seed,
        status,
        int(results.get("updates") or 0),
        log.total,
        tuple(log.evaluations),
        dict(best.get("metrics") or results.get("final") or {}) if status == "finished" else {},
        sum((results.get("timings") or {}).values()),
        str(failure["message"]) if failure else None,
        str(failure["kind"]) if failure else None,
    )


def find_last_step(folder: SweepFolder, name: str) -> int:
    """Return the last update that a run has logged, to see whether it makes progress."""
    return max((int(record.get("step") or 0) for record in RunLog(folder.run(name) / LOG).read()), default=-1)


@dataclass
class _Log:
    total: int | None = None
    evaluations: list[Evaluation] = field(default_factory=list)


def _parse_log(path: Path, metric: str) -> _Log:
    log, best = _Log(), None
    for record in RunLog(path).read():
        if record.get("event") == "start":
            log.total = int(record["updates"])
        elif record.get("event") == "evaluate":
            best = record["metrics"].get(metric) if record.get("best") else best
            log.evaluations.append(Evaluation(int(record["step"]), best))
    return log


def _read_results(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / RESULTS).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
