"""What is known of a run from its small files: its state, how far it came, and its values by key."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from taskrecipe.comparison.run_files import RunFiles, find_run_folders
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import ENVIRONMENT, JOB, LOG, MARKER, RESULTS, SPEC
from taskrecipe.run.lock import HOLDER, Holder, find_live_holder
from taskrecipe.submission.job_states import JobState, find_job_state

State = Literal["training", "finished", "stopped", "failed", "interrupted", "damaged", "queued", "requeued"]
"""`training`: its process is alive, or its job runs. `stopped`: a signal ended it, and it can be resumed.
`interrupted`: its process ended without a word (kill -9, a power cut), and it can be resumed. `damaged`: its files
can't be read. `queued`: its job waits for the first time. `requeued`: it waits to go on."""

_ENDS = ("finished", "stopped", "failed")
_PROGRESS = ("start", "epoch", "update", "evaluate", "save", "end")
"""The events that say how far a run is. A warning may come after the end."""


@dataclass(frozen=True)
class Best:
    """The best evaluation of a run so far."""

    metric: str | None
    value: float | None
    step: int | None
    metrics: dict[str, float]
    """Every metric of that evaluation."""


class RunSummary:
    """A run as `list_runs` returns it. Files are read when they are asked for, and damaged ones are tolerated."""

    def __init__(self, folder: Path, names: frozenset[str]) -> None:
        self.folder = folder
        self.files = RunFiles(folder, names)

    @classmethod
    def open(cls, folder: Path) -> RunSummary:
        """Return the run in a folder, or raise `UsageError` where there is none."""
        path = RunFolder.open(folder).path
        [(_, names)] = find_run_folders(path)
        return cls(path, names)

    def __repr__(self) -> str:
        return f"RunSummary({str(self.folder)!r}, {self.state!r})"

    @property
    def name(self) -> str:
        """The run's name, which is its folder's."""
        return Path(os.path.abspath(self.folder)).name if self.folder.name in ("", "..") else self.folder.name  # noqa: PTH100

    # Files ------------------------------------------------------------------------------------------

    @cached_property
    def marker(self) -> dict[str, Any]:
        """The content of run.json."""
        found = self.files.read_json(MARKER)
        if MARKER not in self.files.names:
            self.problems.append(f"{MARKER} is missing")
        elif not isinstance(found.get("id"), str) and not self.problems:
            self.problems.append(f"{MARKER} has no id")
        return found

    @cached_property
    def results(self) -> dict[str, Any]:
        """The content of results.json; empty until the run has ended."""
        return self.files.read_json(RESULTS)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """The content of environment.json."""
        return self.files.read_json(ENVIRONMENT)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The values of spec.toml, defaults included, as they were written."""
        return self.files.read_toml(SPEC)

    @property
    def problems(self) -> list[str]:
        """What is damaged in the folder, as far as it was read."""
        return self.files.problems

    # State ------------------------------------------------------------------------------------------

    @cached_property
    def holder(self) -> Holder | None:
        """The process that trains this run now."""
        return find_live_holder(self.folder) if HOLDER in self.files.names else None

    @cached_property
    def last_event(self) -> dict[str, Any]:
        """The newest event that says how far the run is."""
        events = self.files.read_last_events()
        return next((event for event in events if event.get("event") in _PROGRESS), {})

    @cached_property
    def state(self) -> State:
        """Whether the run trains or waits for that, and how it ended if not."""
        if self.job_state in ("queued", "requeued"):  # even if a holder on another machine seems to be alive
            return self.job_state
        if self.holder is not None or self.job_state == "training":
            return "training"
        status, has_ended = self.results.get("status"), self.last_event.get("event") in ("end", None)
        if "id" not in self.marker or self.problems:
            return "damaged"
        # A run that was resumed and then killed still has the results of its first part.
        if status in _ENDS and has_ended:
            return status  # type: ignore[no-any-return]
        return "interrupted"

    @cached_property
    def job(self) -> dict[str, Any]:
        """The content of job.json; empty for a run that was not submitted."""
        return self.files.read_json(JOB)

    @cached_property
    def job_state(self) -> JobState | None:
        """What is known of the run's job; None if it has none, or has finished."""
        if JOB not in self.files.names or self.results.get("status") == "finished":
            return None
        state = find_job_state(self.job)
        if state != "unknown":
            return state
        if not self.last_event:
            return "queued"
        was_saved = "SIGUSR1" in str(self.last_event.get("reason")) and self.job.get("requeue")
        return "requeued" if was_saved else None

    @cached_property
    def updates(self) -> int:
        """Updates taken so far."""
        step = self.last_event.get("step", self.results.get("updates"))
        return step if isinstance(step, int) else 0

    @cached_property
    def total_updates(self) -> int | None:
        """Updates of the whole run, as planned when it started; None where that is not known."""
        if self.state == "finished":
            return self.updates
        starts = [*self.files.read_first_events(), *reversed([*self.files.read_last_events()])]
        planned = [event.get("updates") for event in starts if event.get("event") == "start"]
        return planned[-1] if planned and isinstance(planned[-1], int) else None

    @cached_property
    def silent_seconds(self) -> float | None:
        """Seconds since a run that is training wrote into its log; None for other runs."""
        if self.state != "training" or LOG not in self.files.names:
            return None
        try:
            return max(0.0, time.time() - (self.folder / LOG).stat().st_mtime)
        except OSError:
            return None

    # Facts ------------------------------------------------------------------------------------------

    @cached_property
    def recipe(self) -> str | None:
        """The name of the run's recipe."""
        found = self.results.get("recipe") or self.spec.get("recipe")
        return found if isinstance(found, str) else None

    @cached_property
    def created(self) -> str | None:
        """When the run was created, in UTC."""
        found = self.marker.get("created")
        return found if isinstance(found, str) else None

    @cached_property
    def best(self) -> Best | None:
        """The best evaluation so far; None before the first."""
        if self.state in _ENDS:
            return _as_best(self.results.get("best"))
        found = None
        for event in self.files.read_evaluations():
            if event.get("best") is True:
                found = event
        if found is None:
            return None
        metrics = _numbers(found.get("metrics"))
        metric = self._best_metric()
        return Best(metric, metrics.get(metric) if metric else None, found.get("step"), metrics)

    def _best_metric(self) -> str | None:
        starts = [event for event in self.files.read_first_events() if event.get("event") == "start"]
        metric = starts[0].get("best_metric") if starts else None
        return metric if isinstance(metric, str) else None

    def to_json(self) -> dict[str, Any]:
        """Return the facts that `recipe runs --json` prints."""
        best = self.best
        facts: dict[str, Any] = {
            "name": self.name,
            "folder": str(self.folder),
            "state": self.state,
            "recipe": self.recipe,
            "created": self.created,
            "updates": self.updates,
            "total_updates": self.total_updates,
            "best": vars(best) if best else None,
        }
        if self.job:
            facts["job"] = {**self.job, "state": self.job_state}
        if self.holder is not None:
            facts |= {"process": dict(self.holder), "silent_seconds": self.silent_seconds}
        return {**facts, "problems": list(self.problems)}


def list_summaries(folder: Path) -> Iterator[RunSummary]:
    """Yield every run in a folder, in the order of their paths."""
    for path, names in find_run_folders(folder):
        yield RunSummary(path, names)


def _as_best(found: Any) -> Best | None:
    if not isinstance(found, Mapping):
        return None
    metric, value, step = (found.get(key) for key in ("metric", "value", "step"))
    metrics = _numbers(found.get("metrics"))
    if isinstance(metric, str) and isinstance(value, int | float):
        metrics = {metric: value, **metrics}
    return Best(metric, value, step, metrics)


def _numbers(found: Any) -> dict[str, float]:
    if not isinstance(found, Mapping):
        return {}
    return {str(name): value for name, value in found.items() if isinstance(value, int | float)}
