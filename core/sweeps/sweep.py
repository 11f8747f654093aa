"""`sweep` and `repeat`: search for the best values of a spec, or train it with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from taskrecipe.run import request
from taskrecipe.sweeps.folder import BASE, PLAN, STATE, WARM, SweepFolder
from taskrecipe.sweeps.outcome import SweepOutcome, write_outcome
from taskrecipe.sweeps.search import Moment, Sweeper, default_folder
from taskrecipe.sweeps.settings import Settings
from taskrecipe.sweeps.workers import Workers
from taskrecipe.system.optional_packages import require_package


def sweep(
    file: str | Path,
    *,
    set: request.Settings = (),
    out: str | Path | None = None,
    sample: bool = False,
    parallel: int | None = None,
    allow: Sequence[str] = (),
    retry: bool = False,
) -> SweepOutcome:
    """Search for the best values that the `[sweep]` of a spec describes, and return what was found.

    The folder is `out`, or runs/<name>-sweep. A sweep that is there is continued; `allow` names keys whose changes are
    accepted although they change results. With `retry`, trials that have failed are tried again.
    """
    return open_sweep(file, set=set, out=out, sample=sample, parallel=parallel, allow=allow, retry=retry).finish()


def open_sweep(
    file: str | Path,
    *,
    set: request.Settings = (),
    out: str | Path | None = None,
    sample: bool = False,
    parallel: int | None = None,
    allow: Sequence[str] = (),
    retry: bool = False,
) -> Search:
    """Prepare a search like `sweep`: read the file, compare it with the folder, and keep it there."""
    changes = {"parallel": parallel} if parallel else {}
    settings = Settings.read(Path(file), request.as_assignments(set), sample=sample, kind="sweep", changes=changes)
    return _open(settings, out, allow, retry=retry)


def repeat(
    spec: str | Path,
    *,
    seeds: int = 5,
    set: request.Settings = (),
    out: str | Path | None = None,
    sample: bool = False,
    parallel: int = 1,
) -> SweepOutcome:
    """Train a spec with several seeds, and return each metric with its mean, interval and spread.

    The folder is `out`, or runs/<name>-repeat. Runs that are there are continued.
    """
    return open_repeat(spec, seeds=seeds, set=set, out=out, sample=sample, parallel=parallel).finish()


def open_repeat(
    spec: str | Path,
    *,
    seeds: int = 5,
    set: request.Settings = (),
    out: str | Path | None = None,
    sample: bool = False,
    parallel: int = 1,
    allow: Sequence[str] = (),
    retry: bool = False,
) -> Search:
    """Prepare runs like `repeat`."""
    changes = {"seeds": seeds, "parallel": parallel, "trials": 1, "sampler": "random"}
    settings = Settings.read(Path(spec), request.as_assignments(set), sample=sample, kind="repeat", changes=changes)
    return _open(settings, out, allow, retry=retry)


@dataclass
class Search:
    """A sweep that is ready to be worked on, in its folder."""

    folder: SweepFolder
    settings: Settings
    workers: Workers

    def moments(self) -> Generator[Moment, None, SweepOutcome]:
        """Work on the sweep, and yield its state again and again. The return value is what was found."""
        last: Moment | None = None
        for moment in Sweeper(self.folder, self.settings, self.workers).moments():
            last = moment
            yield moment
        with self.folder.planning():
            return write_outcome(self.folder, self.settings, last.trials if last else (), is_done=True)

    def finish(self, show: Callable[[Moment], None] | None = None) -> SweepOutcome:
        """Work on the sweep until it is done, and show each of its moments."""
        moments = self.moments()
        while True:
            try:
                moment = next(moments)
                if show is not None:
                    show(moment)
            except StopIteration as finished:
                outcome: SweepOutcome = finished.value
                return outcome


def _open(settings: Settings, out: str | Path | None, allow: Sequence[str] = (), *, retry: bool = False) -> Search:
    require_package("optuna", install="taskrecipe[sweep]", wanted_by=f"`recipe {settings.kind}`")
    folder = SweepFolder.create(Path(out) if out is not None else default_folder(settings))
    workers = Workers(folder.state / WARM, settings.sweep.parallel, settings.processes, settings.on_cpu)
    try:
        if folder.read_json(f"{STATE}/{PLAN}") is None:
            workers.wait_until_ready()  # before the lock is taken, for which other sweepers wait
        with folder.planning():
            settings = _prepare(folder, settings, workers, allow)
            if retry:
                folder.forget_failures()
    except BaseException:
        workers.close()
        raise
    return Search(folder, settings, workers)


def _prepare(folder: SweepFolder, settings: Settings, workers: Workers, allow: Sequence[str]) -> Settings:
    """Compare the sweep with what is in its folder, and keep it there. All trials use the same data: decide it once."""
    recorded = folder.read_json(f"{STATE}/{PLAN}")
    if recorded is None:
        folder.write_text(BASE, settings.text)
        reason = workers.find_sample_reason(folder.base, settings.wants_sample)
        settings = replace(settings, sample_reason=reason)
    else:
        notes = settings.find_changes(recorded, allow)
        settings = replace(settings, sample_reason=recorded["sample_reason"], notes=notes)
    settings.record(folder)
    return settings
