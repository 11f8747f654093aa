"""What a run prints: a live progress bar on a terminal, plain lines elsewhere, or JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Protocol, TextIO, TypeVar, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.status import Status

from taskrecipe.run.launchers import is_first
from taskrecipe.system.secrets import to_json
from taskrecipe.system.terminal import SafeStream, printable
from taskrecipe.training.events import (
    About,
    End,
    Evaluated,
    Evaluating,
    Event,
    FinalEvaluated,
    Mirrored,
    Opened,
    Planned,
    Reported,
    Sample,
    Saved,
    Start,
    Updated,
    Warned,
)

WIDE, WIDE_BAR, NARROW_BAR = 110, 24, 6
"""Columns of a wide terminal, and of the bar there and on a narrower one."""

SAMPLE_BANNER = """\
!! Training on SAMPLE data with a tiny model, made on the spot: {reason}.
!! The run works as a real one would; its numbers say nothing about the task."""


T = TypeVar("T")


class Display(Protocol):
    """Shows events to a person or a program."""

    def show(self, event: Event) -> None:
        """Show an event."""

    def close(self) -> None:
        """Leave nothing open."""


def show_events(events: Generator[Event, None, T], stream: TextIO | None = None, display: Display | None = None) -> T:
    """Print each event of a run as it comes; of several processes, one prints. Return what the generator returns."""
    console = (display or RunConsole(stream)) if is_first() else Silence()
    try:
        while True:
            console.show(next(events))
    except StopIteration as finished:
        result: T = finished.value
        return result
    finally:
        console.close()


class JsonLines:
    """Writes events for programs: one JSON object a line, as in log.jsonl, and also the run's folder and report."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = SafeStream(stream or sys.stdout)

    def show(self, event: Event) -> None:
        """Write the line of an event. What only moves a progress bar has none."""
        if event.logged or isinstance(event, Opened | Planned | Reported | Mirrored):
            self.stream.write(to_json(event.timed_record()) + "\n")
            self.stream.flush()

    def close(self) -> None:
        """Do nothing: every line was written at once."""


class Silence:
    """Shows nothing. Errors are still raised."""

    def show(self, event: Event) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class RunConsole:
    """Prints the events of a run. An error of the terminal never reaches the run."""

    def __init__(self, stream: TextIO | None = None) -> None:
        safe = cast(TextIO, SafeStream(stream or sys.stderr))
        self.console = Console(file=safe, highlight=False, emoji=False, soft_wrap=True)
        self.best_metric = "loss"
        self.best: list[str] = []
        self.bar: Progress | None = None
        self.waiting: Status | None = None
        self.updates: TaskID | None = None
        self.batches: TaskID | None = None

    def show(self, event: Event) -> None:
        """Print an event, or move the progress bar."""
        if isinstance(event, Start):
            self.best_metric = event.best_metric
            self._stop_waiting()
            self._start_bar(event)
        self._move_bar(event)
        line = self._describe(event)
        if line and (self.bar is None or not isinstance(event, Updated)):
            self._print(line, "yellow" if isinstance(event, Warned | Sample) else None)
        if isinstance(event, About | Opened):
            self._wait("loading data and model" if isinstance(event, Opened) else "starting")
        if isinstance(event, End):
            self.close()

    def close(self) -> None:
        """Remove the progress bar."""
        self._stop_waiting()
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _print(self, text: str, style: str | None = None) -> None:
        # Names and messages may come from data, so this is the one place where text leaves.
        self.console.print(printable(text), markup=False, style=style)

    def _wait(self, for_what: str) -> None:
        """Show on a terminal that something is going on."""
        if not self.console.is_terminal or self.bar is not None:
            return
        if self.waiting is None:
            self.waiting = Status(for_what, console=self.console)
            self.waiting.start()
        if for_what != "starting":
            self.waiting.update(for_what)

    def _stop_waiting(self) -> None:
        if self.waiting is not None:
            self.waiting.stop()
            self.waiting = None

    def _start_bar(self, event: Start) -> None:
        if not self.console.is_terminal:
            return
        name, numbers = (TextColumn(f"{{task.{field}}}", markup=False) for field in ("description", "fields[numbers]"))
        left = TextColumn("time left")
        bar = BarColumn(WIDE_BAR if self.console.width >= WIDE else NARROW_BAR)
        columns = (name, bar, MofNCompleteColumn(), numbers, left, TimeRemainingColumn(compact=True))
        self.bar = Progress(*columns, console=self.console, transient=True)
        self.updates = self.bar.add_task("updates", total=event.updates, completed=event.step, numbers="")
        self.bar.start()

    def _move_bar(self, event: Event) -> None:
        if self.bar is None or self.updates is None:
            return
        if isinstance(event, Updated):
            self.bar.update(self.updates, completed=event.step)
            if event.logged:
                self.bar.update(self.updates, numbers=printable(self._describe_numbers(event)))
        elif isinstance(event, Evaluating):
            split = f"  {printable(event.split)}"
            if self.batches is None:
                self.batches = self.bar.add_task(split, total=event.total, numbers="")
            self.bar.update(self.batches, completed=event.done, total=event.total, description=split)
        elif isinstance(event, Evaluated) and self.batches is not None:
            self.bar.remove_task(self.batches)
            self.batches = None

    def _describe_numbers(self, event: Updated) -> str:
        """Return the numbers next to the bar: as many as fit into the terminal, or rich would cut off the counts."""
        parts = [f"loss {event.loss:.4f}", f"lr {event.learning_rate:.3g}", _describe_speed(event), *self.best]
        bar = WIDE_BAR if self.console.width >= WIDE else NARROW_BAR
        counts = 2 * len(str(self.bar.tasks[0].total)) if self.bar else 0
        room = self.console.width - bar - counts - len("updates   /   time left 00:00 ")
        while len(parts) > 1 and len("  ".join(parts)) > room:
            parts.pop()
        return "  ".join(parts)

    def _describe(self, event: Event) -> str | None:
        """Return the line that an event is printed as; None for events that only move the bar."""
        match event:
            case About():
                return "\n".join(f"{name:<7} {value}" for name, value in event.facts.items())
            case Opened():
                return f"folder  {event.folder}"
            case Reported():
                return f"report: {event.path}"
            case Mirrored():
                return f"copied to {event.url}" if event.done else f"waiting for the copy to {event.url}"
            case Sample():
                return SAMPLE_BANNER.format(reason=event.reason)
            case Start(resumed_from=int(step)):
                return f"resuming after update {step} of {event.updates}"
            case Start():
                epochs = f", {event.updates_per_epoch} per epoch" if event.updates_per_epoch else ""
                return f"training: {event.updates} updates{epochs}"
            case Updated(loss=float(loss)):
                return f"update {event.step}: loss {loss:.4f}  {_describe_step(event)}"
            case Evaluated():
                return self._describe_evaluation(event)
            case FinalEvaluated():
                return f"final evaluation of the weights after update {event.weights}: {_list_metrics(event.metrics)}"
            case Saved():
                return f"saved {event.checkpoint} ({event.bytes / 2**20:.1f} MiB in {event.seconds:.2f} s)"
            case Warned():
                return f"warning: {event.message}"
            case End():
                return f"{event.status} after update {event.step}: {event.reason}"
        return None

    def _describe_evaluation(self, event: Evaluated) -> str:
        if event.best:
            self.best = [f"best {self.best_metric} {event.metrics[self.best_metric]:.4f}"]
        numbers = _list_metrics(event.metrics)
        return f"evaluation after update {event.step}: {numbers}{'  (best so far)' if event.best else ''}"


def _list_metrics(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def _describe_speed(event: Updated) -> str:
    if event.tokens_per_second is not None:
        return f"{event.tokens_per_second:,.0f} tokens/s"
    return f"{event.rows_per_second or 0.0:.0f} rows/s"


def _describe_step(event: Updated) -> str:
    norm = f"  grad norm {event.grad_norm:.3g}" if event.grad_norm is not None else ""
    return f"lr {event.learning_rate:.3g}{norm}"
