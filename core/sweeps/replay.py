"""`replay`: train the spec of a run again in its recorded conditions, and say whether it came out the same."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from taskrecipe.comparison.conditions import ConditionDifference, find_condition_differences
from taskrecipe.comparison.run_summary import RunSummary
from taskrecipe.errors import RecipeError, UnmetExpectationError, UsageError
from taskrecipe.run import folder_names
from taskrecipe.run.folder_names import ENVIRONMENT, SPEC
from taskrecipe.run.handle import Run
from taskrecipe.run.request import Request
from taskrecipe.run.train import run_request_events
from taskrecipe.spec.sweep import Bounds
from taskrecipe.use.comparison import find_differences, is_same

if TYPE_CHECKING:
    from taskrecipe.training.events import Event

Verdict = Literal["same bits", "as expected", "same metrics", "different"]
"""`as expected`: other bits, but metrics as `[expect]` says. `same metrics`: they differ by the tolerance at most."""

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True)
class Replay:
    """A run and its replay, compared."""

    first: Run
    second: Run
    verdict: Verdict
    metrics: list[str]
    """The metrics that differ, with both values."""
    unmet: list[str]
    """The keys of `[expect]` that the replay does not meet; its fingerprint aside."""
    conditions: list[ConditionDifference]
    """What differs besides the results: data, packages, device, …"""
    notes: list[str]

    @property
    def is_same(self) -> bool:
        """Whether the run came out the same, in bits or as expected."""
        return self.verdict != "different"

    def to_json(self) -> dict[str, Any]:
        """Return the replay as JSON values."""
        return {
            "run": str(self.first.folder),
            "replay": str(self.second.folder),
            "verdict": self.verdict,
            "metrics": self.metrics,
            "unmet": self.unmet,
            "conditions": [one.to_json() for one in self.conditions],
            "notes": self.notes,
        }


def replay(folder: str | Path, *, out: str | Path | None = None, tolerance: float = 0.0) -> Replay:
    """Train the spec of a run again, and compare the two.

    The folder of the replay is `out`, or a new one, runs/<name>-replay. Metrics that differ by no more than
    `tolerance` count as the same.
    """
    events = replay_events(folder, out=out)
    while True:
        try:
            next(events)
        except StopIteration as finished:
            return compare_replay(Run(folder), finished.value, tolerance)


def replay_events(folder: str | Path, *, out: str | Path | None = None) -> Generator[Event, None, Run]:
    """Train the spec of a run again, and yield each event. The return value is the new run."""
    first = Run(folder)
    if first.results.get("status") != "finished":
        raise UsageError(f"{folder} has not finished, so a replay can't be compared with it; `recipe resume` it first")
    about = RunSummary.open(first.folder).environment
    if not about:
        raise UsageError(f"{folder} has no {ENVIRONMENT}: its conditions are not known")
    target = Path(out) if out is not None else _free_folder(f"{first.name}-replay")
    request = _make_request(first, about, target)
    with _with_threads(about.get("threads"), int(about.get("processes") or 1)):
        try:
            return (yield from run_request_events(request))
        except UnmetExpectationError:  # the replay has finished, and is compared like any other
            return Run(target)


def compare_replay(first: Run, second: Run, tolerance: float = 0.0) -> Replay:
    """Say whether a replay came out as the run that it repeats."""
    known, found = _metrics(first), _metrics(second)
    differing = find_differences(known, found, 0.0)
    checks = [check for check in second.results.get("expect") or [] if check["key"] != "fingerprint"]
    unmet = [
        f"{check['key']}: expected {check['expected']}, found {check['found']}" for check in checks if not check["met"]
    ]
    bounds = any(isinstance(wanted, Bounds) for wanted in second.spec.expect.values())
    close = (
        all(is_same(known.get(name), value, tolerance) for name, value in found.items())
        and known.keys() == found.keys()
    )
    verdict: Verdict = "different"
    if _fingerprint(first) is not None and _fingerprint(first) == _fingerprint(second):
        verdict = "same bits"
    elif bounds and not unmet:
        verdict = "as expected"
    elif tolerance > 0 and close:
        verdict = "same metrics"
    conditions = find_condition_differences([RunSummary.open(run.folder) for run in (first, second)])
    return Replay(first, second, verdict, differing, unmet, conditions, list(_find_notes(first)))


def _make_request(first: Run, about: dict[str, Any], target: Path) -> Request:
    spec = first.folder / SPEC
    processes = int(about.get("processes") or 1)
    sets = () if first.spec.launch.processes == processes else (f"launch.processes={processes}",)
    return Request("train", str(spec), sets, str(target), copy_of=str(spec))


def _free_folder(name: str) -> Path:
    return next(path for path in folder_names.candidates(name) if not path.exists())


@contextmanager
def _with_threads(threads: int | None, processes: int) -> Iterator[None]:
    """Compute with as many threads as the run did: sums over them are rounded in another order."""
    if not threads:
        yield
        return
    before = os.environ.get(THREADS)
    os.environ[THREADS] = str(threads)  # for processes that are started
    try:
        if processes == 1:
            import torch

            count = torch.get_num_threads()
            torch.set_num_threads(int(threads))
            try:
                yield
            finally:
                torch.set_num_threads(count)
        else:
            yield
    finally:
        if before is None:
            os.environ.pop(THREADS, None)
        else:
            os.environ[THREADS] = before


def _metrics(run: Run) -> dict[str, float]:
    results = run.results
    best = results.get("best")
    return dict((best["metrics"] if best else results.get("final")) or {})


def _fingerprint(run: Run) -> str | None:
    """Return the fingerprint of a run's last checkpoint; None if that is gone."""
    from taskrecipe.checkpoints.checkpoint import find_checkpoint
    from taskrecipe.checkpoints.fingerprint import fingerprint

    with suppress(RecipeError):
        return fingerprint(find_checkpoint(run.folder / folder_names.CHECKPOINTS, "last").path)
    return None


def _find_notes(run: Run) -> Iterator[str]:
    """Yield what the run's log says about its history that a replay does not repeat."""
    for record in run.log:
        if record.get("event") == "warning" and str(record.get("message", "")).startswith("changed since"):
            yield f"the run was resumed with a change: {record['message']}"
