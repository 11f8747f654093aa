"""`train`, `resume` and `dry_run`: what the command does, as functions."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.remote_files import list_urls
from taskrecipe.errors import UsageError
from taskrecipe.remote.filesystem import require_filesystem
from taskrecipe.remote.urls import is_url, restore_url
from taskrecipe.run.handle import Run
from taskrecipe.run.host import preserve_host
from taskrecipe.run.request import Request, Settings
from taskrecipe.system.optional_packages import require_package

if TYPE_CHECKING:
    from taskrecipe.spec.spec import Spec
    from taskrecipe.training.events import Event


def train(
    spec: str | Path,
    *,
    set: Settings = (),
    out: str | Path | None = None,
    sample: bool = False,
    processes: int | None = None,
    quiet: bool = False,
) -> Run:
    """Train what a spec describes, and return the run.

    `set` replaces values of the spec: {"train.epochs": 1}. The run's folder is `out`, or a new one in `runs/`. With
    `sample`, the recipe's own sample data and tiny model are used. Progress is shown on stderr unless `quiet`.
    """
    return _show_events(train_events(spec, set=set, out=out, sample=sample, processes=processes), quiet)


def train_events(
    spec: str | Path,
    *,
    set: Settings = (),
    out: str | Path | None = None,
    sample: bool = False,
    processes: int | None = None,
    resume: bool = False,
    allow: Sequence[str] = (),
) -> Generator[Event, None, Run]:
    """Train like `train`, and yield each event as it comes. The generator's return value is the run.

    With `resume`, a run that is already in the folder is continued; `allow` then works as in `resume`.
    """
    request = Request.make(
        "train",
        spec,
        set=set,
        processes=processes,
        out=None if out is None else str(out),
        sample=sample,
        continues=resume,
        allow=tuple(allow),
    )
    return run_request_events(request)


def resume(
    folder: str | Path,
    *,
    set: Settings = (),
    allow: Sequence[str] = (),
    processes: int | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Run:
    """Continue a run from its newest valid checkpoint, and return it.

    A run at a URL, such as s3://bucket/runs/mrpc, is fetched first: into `out`, or into runs/NAME. What
    has changed since the checkpoint is compared first. `allow` names the keys whose changes are accepted although they
    change results.
    """
    return _show_events(resume_events(folder, set=set, allow=allow, processes=processes, out=out), quiet)


def resume_events(
    folder: str | Path,
    *,
    set: Settings = (),
    allow: Sequence[str] = (),
    processes: int | None = None,
    out: str | Path | None = None,
) -> Generator[Event, None, Run]:
    """Resume like `resume`, and yield each event as it comes. The generator's return value is the run."""
    options: dict[str, Any] = {"set": set, "processes": processes, "allow": tuple(allow)}
    if is_url(folder):
        return _fetch_and_resume(restore_url(folder), out, options)
    if out is not None:
        raise UsageError(f"{folder} is resumed where it is; another folder can be named for a run at a URL")
    return run_request_events(Request.make("resume", folder, **options))


def _fetch_and_resume(url: str, out: str | Path | None, options: dict[str, Any]) -> Generator[Event, None, Run]:
    from taskrecipe.remote.fetch import choose_folder, fetch_run
    from taskrecipe.training.events import About, Warned

    yield About(0, {"fetch": f"{url} into {choose_folder(url, out)}"})
    folder, warnings = fetch_run(url, out, to_resume=True)
    yield from (Warned(0, message) for message in warnings)
    return (yield from run_request_events(Request.make("resume", folder, **options)))


def dry_run(
    spec: str | Path, *, set: Settings = (), sample: bool = False, processes: int | None = None
) -> dict[str, str]:
    """Return what a run would do and cost. A few updates are measured; nothing is kept."""
    return measure_request(Request.make("dry", spec, set=set, processes=processes, sample=sample))[0]


def measure_request(request: Request) -> tuple[dict[str, str], float]:
    """Return what a run would do and cost, and how many seconds its updates take."""
    from taskrecipe.training.events import Planned

    found = [(event.facts, event.seconds) for event in _start(request) if isinstance(event, Planned)]
    return found[0] if found else ({}, 0.0)


def _show_events(events: Generator[Event, None, Run], quiet: bool) -> Run:
    with preserve_host():
        from taskrecipe.run.closing import print_closing
        from taskrecipe.run.console import show_events

        if quiet:
            return _exhaust(events)
        run = show_events(events)
        print_closing(run)
        return run


def _exhaust(events: Generator[Event, None, Run]) -> Run:
    while True:
        try:
            next(events)
        except StopIteration as finished:
            run: Run = finished.value
            return run


def run_request_events(request: Request) -> Generator[Event, None, Run]:
    """Yield the events of a request for a run, and return the run."""
    from taskrecipe.training.events import Opened

    folder = ""
    for event in _start(request):
        if isinstance(event, Opened):
            folder = event.folder
        yield event
    return Run(Path(folder))


def _start(request: Request) -> Iterator[Event]:
    """Run the request here, or in as many processes as the spec asks for."""
    from taskrecipe.run import launchers, processes
    from taskrecipe.training.events import About

    resolved = request.resolve()
    require_packages(resolved.spec)
    # Said before torch is imported, which takes seconds.
    first = [About(0, {"spec": f"{request.path}, recipe {resolved.spec.recipe}"})] if launchers.is_first() else []
    if launchers.is_launched() or resolved.spec.launch.processes == 1:
        from taskrecipe.run.execute import execute_request

        return chain(first, execute_request(request, resolved))
    return chain(first, processes.launch_request(request, resolved.spec.launch))


def require_packages(spec: Spec) -> None:
    """Raise if a package that the spec's plugins need is not installed, before anything is loaded."""
    spec.optimizer.require()
    if spec.model.quantize is not None:
        require_package("bitsandbytes", install="taskrecipe[quantize]", wanted_by="[model].quantize")
    for technique in spec.techniques:
        technique.require()
    if spec.track is not None:
        spec.track.require()
    mirror = {spec.checkpoint.mirror: "[checkpoint].mirror"} if spec.checkpoint.mirror else {}
    for url, key in {**list_urls(spec.data), **mirror}.items():
        require_filesystem(url, key)
