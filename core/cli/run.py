"""`recipe run` and `recipe resume`."""

from __future__ import annotations

import gc
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from taskrecipe.errors import UsageError
from taskrecipe.run.train import dry_run, resume_events, train_events
from taskrecipe.system.secrets import to_json

if TYPE_CHECKING:
    from taskrecipe.run.console import Display
    from taskrecipe.run.handle import Run
    from taskrecipe.training.events import Event

Output = Literal["text", "json", "nothing"]


def run(
    path: Path,
    *,
    sets: Sequence[str],
    out: Path | None,
    resume: bool,
    allow: Sequence[str],
    sample: bool,
    dry: bool,
    processes: int | None,
    output: Output = "text",
) -> None:
    """Train what a spec describes, in a new folder or, with `resume`, in the folder of a run that is there."""
    if dry:
        _print_plan(dry_run(path, set=sets, sample=sample, processes=processes), output)
        return
    events = train_events(path, set=sets, out=out, sample=sample, processes=processes, resume=resume, allow=allow)
    _follow(events, output)


def resume(
    folder: str,
    *,
    sets: Sequence[str],
    allow: Sequence[str],
    processes: int | None,
    out: Path | None = None,
    output: Output = "text",
) -> None:
    """Continue a run from its newest valid checkpoint."""
    _follow(resume_events(folder, set=sets, allow=allow, processes=processes, out=out), output)


def choose_output(*, quiet: bool, as_json: bool) -> Output:
    """Return what a run prints. The two options exclude each other."""
    if quiet and as_json:
        raise UsageError("--quiet and --json exclude each other: the one prints nothing, the other every event")
    return "json" if as_json else "nothing" if quiet else "text"


def _follow(events: Generator[Event, None, Run], output: Output) -> None:
    from taskrecipe.run.closing import print_closing
    from taskrecipe.run.console import JsonLines, Silence, show_events

    displays: dict[Output, Display | None] = {"text": None, "json": JsonLines(), "nothing": Silence()}
    finished = show_events(_freeze_at_start(events), display=displays[output])
    if output == "text":
        print_closing(finished)


def _freeze_at_start(events: Generator[Event, None, Run]) -> Generator[Event, None, Run]:
    """Take what is loaded before the first update out of garbage collection: it all stays until the process ends."""
    while True:
        try:
            event = next(events)
        except StopIteration as finished:
            run: Run = finished.value
            return run
        if event.name == "start":
            gc.freeze()
        yield event


def _print_plan(facts: dict[str, str], output: Output) -> None:
    if output == "json":
        print(to_json({"event": "plan", "step": 0, "facts": facts}))
    if output != "text":
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, value)
    if facts:
        Console(highlight=False, soft_wrap=True).print(table)
