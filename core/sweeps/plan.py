"""What a sweep does next, as a function of its settings and of what its runs have found: no clock, no order of arrival.

A sweep that is killed and started again, or shared by several machines, so comes to the same trials and the same best.

Halving: all trials train up to the first rung. When the last of them is there, the best ones go on to the next rung,
and so on; the last rung is the end. Median: a trial that is worse than half of those that were known when it was
suggested pauses; which limits it must keep is known when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from taskrecipe.recipe import Direction
from taskrecipe.run.pause import Pause
from taskrecipe.spec.sweep import Sweep
from taskrecipe.sweeps.space import Values, count_trials
from taskrecipe.sweeps.trial_runs import TrialRun

FEWEST_FOR_MEDIAN = 5
"""Trials whose median is worth comparing with."""

FIRST_FAILURES = 3
"""A sweep whose first trials all fail ends: the others would fail too."""

END = 1.0


@dataclass(frozen=True)
class Trial:
    """One combination of values, and its runs."""

    number: int
    values: Values
    runs: tuple[TrialRun, ...]

    @property
    def has_failed(self) -> bool:
        """Whether one of its runs has failed, or has found no finite value."""
        return any(run.status == "failed" or (run.status == "finished" and run.value is None) for run in self.runs)

    @property
    def is_finished(self) -> bool:
        """Whether all of its runs have trained to their end."""
        return not self.has_failed and all(run.status == "finished" for run in self.runs)

    @property
    def is_paused(self) -> bool:
        """Whether one of its runs has been stopped early."""
        return not self.has_failed and any(run.status == "paused" for run in self.runs)

    @property
    def value(self) -> float | None:
        """The mean of the best values so far; None if a run has none."""
        values = [run.value for run in self.runs]
        return fmean(known) if len(known := [v for v in values if v is not None]) == len(values) else None

    def value_at(self, share: float) -> float | None:
        """Return the mean of the values at a share of all updates; None if not all runs have come that far."""
        found = [run.evaluation_at(share) for run in self.runs]
        values = [one.best for one in found if one is not None and one.best is not None]
        return fmean(values) if len(values) == len(found) else None

    def has_reached(self, share: float) -> bool:
        """Whether nothing is left to do up to a share of all updates."""
        return self.has_failed or all(
            run.status == "finished" or (share < END and run.evaluation_at(share) is not None) for run in self.runs
        )


@dataclass(frozen=True)
class Job:
    """A run to start or to resume."""

    trial: int
    run: TrialRun
    pause: Pause | None = None


@dataclass(frozen=True)
class Known:
    """What is known of an earlier trial when a new one is suggested."""

    number: int
    value: float | None
    """None: it has failed."""
    is_pruned: bool = False
    step: int = 0


@dataclass(frozen=True)
class Planner:
    """The rules of one sweep."""

    sweep: Sweep
    direction: Direction

    @property
    def count(self) -> int:
        """How many trials there are in all."""
        return count_trials(self.sweep)

    @property
    def ahead(self) -> int:
        """How many trials may be under way without a suggestion knowing their results."""
        return self.sweep.ahead or self.sweep.parallel

    @property
    def shares(self) -> list[float]:
        """The share of all updates at which each rung is; the last is the end."""
        if self.sweep.pruner != "halving":
            return [END]
        return [float(self.sweep.reduction) ** -left for left in range(self.sweep.rungs - 1, -1, -1)]

    # Suggestions ------------------------------------------------------------------------------------

    def may_suggest(self, trials: Sequence[Trial]) -> bool:
        """Whether the next trial can be suggested now."""
        return len(trials) < self.count and self.known_before(len(trials), trials) is not None

    def known_before(self, number: int, trials: Sequence[Trial]) -> list[Known] | None:
        """Return what a suggestion knows: the results of all trials `ahead` before it; None while one is missing."""
        if self.sweep.sampler in ("grid", "random") and self.sweep.pruner != "median":
            return []
        earlier = self._earlier(number, trials)
        if not all(self._is_known(trial) for trial in earlier):
            return None
        return [self._describe(trial) for trial in earlier]

    def _earlier(self, number: int, trials: Sequence[Trial]) -> Sequence[Trial]:
        return trials[: max(0, number - self.ahead + 1)]

    def _is_known(self, trial: Trial) -> bool:
        return trial.has_reached(self.shares[0]) or self._is_pruned(trial)

    def _is_pruned(self, trial: Trial) -> bool:
        return (
            self.sweep.pruner == "median"
            and trial.is_paused
            and all(run.status in ("paused", "finished") for run in trial.runs)
        )

    def _describe(self, trial: Trial) -> Known:
        if trial.has_failed:
            return Known(trial.number, None)
        if self._is_pruned(trial):
            return Known(trial.number, trial.value, True, max(run.updates for run in trial.runs))
        value = trial.value if self.shares[0] == END else trial.value_at(self.shares[0])
        return Known(trial.number, value)

    # Jobs -------------------------------------------------------------------------------------------

    def jobs(self, trials: Sequence[Trial]) -> list[Job]:
        """Return all runs that have something left to do now, in the order in which to start them."""
        if self.sweep.pruner == "median":
            return [job for trial in trials for job in self._median_jobs(trial, trials)]
        found: list[Job] = []
        for rung, survivors in self.rungs(trials):
            share = self.shares[rung]
            pause = Pause(share) if share < END else None
            found += [
                Job(trial.number, run, pause)
                for trial in survivors
                if not trial.has_failed
                for run in trial.runs
                if run.status != "finished" and (share == END or run.evaluation_at(share) is None)
            ]
        return found

    def rungs(self, trials: Sequence[Trial]) -> Iterator[tuple[int, list[Trial]]]:
        """Yield each rung that has begun, and the trials that got there."""
        survivors = list(trials)
        for rung, share in enumerate(self.shares):
            yield rung, survivors
            complete = len(trials) == self.count and all(trial.has_reached(share) for trial in survivors)
            if share == END or not complete:
                return
            survivors = self._promote(survivors, share)

    def _promote(self, survivors: Sequence[Trial], share: float) -> list[Trial]:
        """Return the best trials of a rung, in the order of their numbers."""
        able = [trial for trial in survivors if not trial.has_failed and trial.value_at(share) is not None]
        ranked = self.rank(able, share)
        return sorted(ranked[: max(1, len(survivors) // self.sweep.reduction)], key=lambda trial: trial.number)

    def rank(self, trials: Sequence[Trial], share: float = END) -> list[Trial]:
        """Sort trials that have a value, the best first; of equal ones the earlier."""
        sign = -1.0 if self.direction == "max" else 1.0

        def place(trial: Trial) -> tuple[float, int]:
            value = trial.value if share == END else trial.value_at(share)
            return sign * (value if value is not None else 0.0), trial.number

        return sorted(trials, key=place)

    def _median_jobs(self, trial: Trial, trials: Sequence[Trial]) -> Iterator[Job]:
        if not trial.has_failed:
            pause = Pause(limits=self._limits(trial.number, trials))
            yield from (Job(trial.number, run, pause) for run in trial.runs if run.status in ("new", "begun"))

    def _limits(self, number: int, trials: Sequence[Trial]) -> tuple[tuple[float, float], ...]:
        """Return what half of the trials that were known before had reached, at each share that they evaluated at."""
        before = [run for trial in self._earlier(number, trials) for run in trial.runs]
        known = [run for run in before if run.status in ("paused", "finished") and run.total]
        shares = sorted({evaluation.step / (run.total or 1) for run in known for evaluation in run.evaluations})
        limits: list[tuple[float, float]] = []
        for share in shares:
            values = [e.best for run in known if (e := run.evaluation_at(share)) and e.best is not None]
            if len(values) >= FEWEST_FOR_MEDIAN and share < END:
                limits.append((share, median(values)))
        return tuple(limits)

    # The end ----------------------------------------------------------------------------------------

    def is_done(self, trials: Sequence[Trial]) -> bool:
        """Whether no trial is missing and no run has anything left to do."""
        return len(trials) == self.count and not self.jobs(trials)

    def too_many_failures(self, trials: Sequence[Trial]) -> bool:
        """Whether so many trials have failed that the sweep ends."""
        failed = [trial for trial in trials if trial.has_failed]
        first = trials[: min(FIRST_FAILURES, self.count)]
        return len(failed) > self.sweep.max_failures or (
            len(first) == min(FIRST_FAILURES, self.count) and all(trial.has_failed for trial in first)
        )

    def finished(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that have trained to their end, the best first."""
        return self.rank([trial for trial in trials if trial.is_finished])
