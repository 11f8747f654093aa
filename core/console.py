"""What a run shows: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from taskrecipe.core.plugins import Listener
from taskrecipe.core.training.control import Control
from taskrecipe.core.training.events import (
    End,
    Evaluated,
    Evaluating,
    Event,
    Saved,
    Start,
    Updated,
    Warned,
)


class ConsoleListener(Listener):
    """Tells of a run while it goes on."""

    def __init__(self, best_metric: str, stream: TextIO | None = None) -> None:
        self.console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self.best_metric = best_metric
        self.best = "–"
        self.bar: Progress | None = None
        self.updates: TaskID | None = None
        self.batches: TaskID | None = None

    def hear(self, event: Event, control: Control) -> None:
        """Show what happened."""
        if isinstance(event, Start):
            self._start(event)
        self._draw(event)
        line = self._line(event)
        if line and (self.bar is None or not isinstance(event, Updated)):
            self.console.print(line, markup=False)
        if isinstance(event, End):
            self.close()

    def warn(self, message: str) -> None:
        """Show a warning."""
        self.console.print(f"warning: {message}", markup=False)

    def close(self) -> None:
        """Take the bar down."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def _start(self, event: Start) -> None:
        if not self.console.is_terminal:
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, TextColumn("{task.fields[numbers]}"), console=self.console, transient=True)
        self.updates = self.bar.add_task("updates", total=event.updates, completed=event.step, numbers="")
        self.bar.start()

    def _draw(self, event: Event) -> None:
        if self.bar is None or self.updates is None:
            return
        if isinstance(event, Updated):
            self.bar.update(self.updates, completed=event.step)
            if event.logged:
                numbers = f"loss {event.loss:.4f}  {event.rows_per_second:.0f} rows/s  best {self.best}"
                self.bar.update(self.updates, numbers=numbers)
        elif isinstance(event, Evaluating):
            if self.batches is None:
                self.batches = self.bar.add_task(f"  {event.split}", total=event.total, numbers="")
            self.bar.update(self.batches, completed=event.done, total=event.total, description=f"  {event.split}")
        elif isinstance(event, Evaluated) and self.batches is not None:
            self.bar.remove_task(self.batches)
            self.batches = None

    def _line(self, event: Event) -> str | None:
        match event:
            case Start(resumed_from=int(step)):
                return f"resuming after update {step} of {event.updates}"
            case Start():
                epochs = f", {event.updates_per_epoch} an epoch" if event.updates_per_epoch else ""
                return f"training: {event.updates} updates{epochs}"
            case Updated(loss=float(loss)):
                rate, norm = f"rate {event.learning_rate:.3g}", f"norm {event.grad_norm:.3g}"
                return f"update {event.step}: loss {loss:.4f}  {rate}  {norm}"
            case Evaluated():
                return self._evaluated(event)
            case Saved():
                return f"saved {event.checkpoint} ({event.bytes / 2**20:.1f} MiB in {event.seconds:.2f} s)"
            case Warned():
                return f"warning: {event.message}"
            case End():
                return f"{event.status} after update {event.step}: {event.reason}"
        return None

    def _evaluated(self, event: Evaluated) -> str:
        if event.best:
            self.best = f"{self.best_metric} {event.metrics[self.best_metric]:.4f}"
        numbers = "  ".join(f"{name} {value:.4f}" for name, value in event.metrics.items())
        return f"evaluation after update {event.step}: {numbers}{'  (best so far)' if event.best else ''}"
