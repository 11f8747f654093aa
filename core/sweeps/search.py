"""The sweeper: it suggests trials, starts and resumes their runs, and waits, until nothing is left to do.

Several sweepers may work in one folder, on one machine or on many. One at a time decides what to do next; what that is
follows from the folder alone (`plan`). A run that another process trains is left to it, and taken over if that dies.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from taskrecipe.errors import DiskFullError, Interrupted, RunStopped
from taskrecipe.run.folder_names import RUNS
from taskrecipe.run.signals import Signals
from taskrecipe.sweeps.folder import SweepFolder
from taskrecipe.sweeps.jobs import Order
from taskrecipe.sweeps.journal import Journal
from taskrecipe.sweeps.plan import Job, Planner, Trial
from taskrecipe.sweeps.settings import Settings
from taskrecipe.sweeps.suggestions import Suggester
from taskrecipe.sweeps.trial_runs import find_last_step, read_run
from taskrecipe.sweeps.workers import Workers, send_signal
from taskrecipe.system import atomic_files
from taskrecipe.system.exit_codes import describe_exit

TICK = 0.1
"""The most seconds between two looks at the folder. A run of this machine that ends is seen at once."""

MOST_DEATHS = 3
"""How often a run's process may die at the same update before the run counts as failed."""


@dataclass(frozen=True)
class Moment:
    """A sweep as it is now."""

    trials: tuple[Trial, ...]
    running: frozenset[str]
    """The runs that a process trains now, here or elsewhere."""
    is_done: bool = False


@dataclass
class Sweeper:
    """Works on one sweep until it is done."""

    folder: SweepFolder
    settings: Settings
    workers: Workers
    interrupted: int | None = None
    _running: set[str] = field(default_factory=set)
    _name: str = ""
    """Stands for this sweeper in the folder."""

    def __post_init__(self) -> None:
        self.planner = Planner(self.settings.sweep, self.settings.direction)
        self.journal = Journal(self.folder.journal, self.settings.direction)
        self.suggester = Suggester(self.settings.sweep, self.settings.direction, self.settings.seed)

    def moments(self) -> Iterator[Moment]:
        """Work, and yield the state of the sweep again and again until it is done."""
        with Signals() as signals:
            signals.control = self
            lock = self.folder.register_sweeper()
            self._name = lock.folder.name
            try:
                yield from self._work()
            except BaseException:
                self._save_all(signal.SIGTERM)
                raise
            finally:
                self.workers.close()
                lock.release()
                atomic_files.remove(lock.folder)

    def _work(self) -> Iterator[Moment]:
        while True:
            with self.folder.planning():
                moment = self._step()
            yield moment
            if self.interrupted:
                yield from self._wait_for_saves(moment)
            if self.planner.too_many_failures(moment.trials):
                raise RunStopped(_describe_failures(moment.trials))
            if moment.is_done:
                return
            self.workers.wait(TICK)

    def interrupt(self, signum: int, reason: str) -> bool:
        """Let every run save and stop. A second signal kills them."""
        first, self.interrupted = self.interrupted is None, signum
        self._signal_runs(signum if first else signal.SIGKILL)
        return first

    # One look at the folder -------------------------------------------------------------------------

    def _step(self) -> Moment:
        """Read the folder and do what is due. The planning lock is held."""
        self._judge_deaths(self.workers.collect_ended())
        trials = self._read_trials()
        self._refuse_full_disk(trials)
        if not self.interrupted and not self.planner.too_many_failures(trials):
            trials = self._start_runs(trials)
        jobs = self.planner.jobs(trials)
        is_done = self.planner.is_done(trials) and not self.interrupted
        self._running = {job.run.name for job in jobs if self._is_running(job.run.name)}
        self.journal.conclude(trials, {job.trial for job in jobs} | set(self._undecided(trials)))
        return Moment(tuple(trials), frozenset(self._running), is_done)

    def _undecided(self, trials: list[Trial]) -> list[int]:
        """Return the trials that wait at a rung for the others."""
        if self.planner.sweep.pruner != "halving":
            return []
        *_, (rung, survivors) = self.planner.rungs(trials)
        return [] if rung == len(self.planner.shares) - 1 else [trial.number for trial in survivors]

    def _read_trials(self) -> list[Trial]:
        return [self._read_trial(number, values) for number, values in enumerate(self.journal.read())]

    def _read_trial(self, number: int, values: dict[str, object]) -> Trial:
        names = self.settings.run_names(number)
        runs = tuple(read_run(self.folder, name, seed, self.settings.metric) for name, seed in names)
        return Trial(number, values, runs)

    def _start_runs(self, trials: list[Trial]) -> list[Trial]:
        """Fill the free places of this machine with runs that have something left to do, then with new trials."""
        while True:
            jobs = self.planner.jobs(trials)
            adopted = self._find_adopted([job.run.name for job in jobs])
            free = max(0, self.workers.slots - len(self.workers.running) - len(adopted))
            waiting = [job for job in jobs if free and not self._is_running(job.run.name)]
            may_suggest = free > len(waiting) and self.planner.may_suggest(trials)
            # The lock must not be held while packages are imported: other sweepers wait for it.
            if not (waiting or may_suggest) or not self.workers.is_ready():
                return trials
            for job in waiting[:free]:
                self._start(job, trials[job.trial])
            if not may_suggest:
                return trials
            trials = [*trials, self._suggest(trials)]

    def _suggest(self, trials: list[Trial]) -> Trial:
        known = self.planner.known_before(len(trials), trials) or []
        values = self.suggester.suggest([trial.values for trial in trials], known, self.planner.ahead)
        self.journal.add(self.suggester.space, values)
        return self._read_trial(len(trials), values)

    def _start(self, job: Job, trial: Trial) -> None:
        seed = {} if job.run.seed == self.settings.seed else {"seed": job.run.seed}
        values = {**trial.values, **seed}
        settings, folder = self.settings, str(self.folder.path)
        order = Order(
            folder, job.run.name, settings.file, values, settings.trial_sets, settings.is_sample, job.pause, self._name
        )
        self.workers.start(order)

    def _is_running(self, name: str) -> bool:
        return name in self.workers.running or self.folder.is_claimed(name)

    def _find_adopted(self, names: list[str]) -> dict[str, int]:
        """Return the runs of this machine that a sweeper which has died left running, each with its process."""
        found: dict[str, int] = {}
        for name in names:
            if name not in self.workers.running and self.folder.is_claimed(name):
                pid = self.folder.find_orphan(name)
                found |= {name: pid} if pid is not None else {}
        return found

    # Failures ---------------------------------------------------------------------------------------

    def _judge_deaths(self, ended: dict[str, int]) -> None:
        """Count processes that were killed. One that dies again and again at the same update will not get further."""
        for name, code in ended.items():
            if code == 0 or code > 128 or self.folder.read_failure(name) is not None or self.interrupted:
                continue
            steps = self.workers.deaths.setdefault(name, [])
            steps.append(find_last_step(self.folder, name))
            if steps.count(steps[-1]) >= MOST_DEATHS:
                message = f"its process {describe_exit(code)} {MOST_DEATHS} times after update {max(steps[-1], 0)}"
                self.folder.record_failure(
                    name, {"kind": "Killed", "message": f"{message}; it may need more memory than there is", "code": 4}
                )

    def _refuse_full_disk(self, trials: list[Trial]) -> None:
        """End the sweep where the disk is full: that is not the trial's fault, and it can go on later."""
        for run in [run for trial in trials for run in trial.runs if run.error_kind == "DiskFullError"]:
            self.folder.forget_failure(run.name)
            raise DiskFullError(f"{run.name}: {run.error}")

    # The end ----------------------------------------------------------------------------------------

    def _signal_runs(self, signum: int) -> None:
        self.workers.signal_all(signum)
        for pid in self._find_adopted(sorted(self._running)).values():
            send_signal(pid, signum)

    def _save_all(self, signum: int) -> None:
        """Let the runs that this sweeper has started save and stop, and wait for them."""
        self.workers.signal_all(signum)
        while self.workers.running:
            self.workers.collect_ended()
            self.workers.wait(TICK)

    def _wait_for_saves(self, moment: Moment) -> Iterator[Moment]:
        while self.workers.running or self._find_adopted(sorted(self._running)):
            self.workers.collect_ended()
            yield moment
            self.workers.wait(TICK)
        raise Interrupted(
            self.interrupted or signal.SIGINT,
            f"interrupted by {signal.Signals(self.interrupted or signal.SIGINT).name}; all trials that were running "
            f"are saved. Continue with: {self.settings.command(self.folder.path)}",
        )


def _describe_failures(trials: tuple[Trial, ...]) -> str:
    failed = [trial for trial in trials if trial.has_failed]
    lines = [f"{len(failed)} of {len(trials)} trials have failed, too many to go on:"]
    for trial in failed[:10]:
        reasons = [run.error for run in trial.runs if run.error] or ["no evaluation gave a finite value"]
        lines.append(f"  trial {trial.number}: {reasons[0]}")
    lines.append("Fix the cause and start the sweep again with --retry, or raise [sweep].max_failures")
    return "\n".join(lines)


def default_folder(settings: Settings) -> Path:
    """Return where a sweep goes if no folder is named: runs/<name>-sweep."""
    return RUNS / f"{settings.spec['name'] or Path(settings.file).stem}-{settings.kind}"
