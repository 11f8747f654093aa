"""What a sweep prints while it works: a table that changes on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taskrecipe.run.folder_names import LOG
from taskrecipe.run.log_tail import LogTail
from taskrecipe.sweeps.plan import Planner, Trial
from taskrecipe.sweeps.search import Moment
from taskrecipe.sweeps.settings import Settings
from taskrecipe.system.quantities import format_number
from taskrecipe.system.terminal import SafeStream, printable

REFRESH = 0.5
"""Seconds between two drawings of the table."""

MOST_ROWS = 24
"""Trials in the table: those that train, then the best ones."""

STYLES = {"running": "cyan", "finished": "green", "failed": "red", "paused": "yellow", "pruned": "dim"}


class SweepDisplay:
    """Shows the moments of a sweep."""

    def __init__(self, settings: Settings, folder: Path, stream: TextIO | None = None) -> None:
        self.settings, self.folder = settings, folder
        self.console = Console(file=cast(TextIO, SafeStream(stream or sys.stderr)), highlight=False, emoji=False)
        self.planner = Planner(settings.sweep, settings.direction)
        self._said: dict[str, str] = {}
        self._tails: dict[str, tuple[LogTail, str]] = {}
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None
        self._drawn = 0.0
        for note in settings.notes:
            self._print(f"note: {note}")
        if settings.sample_reason:
            self._print(f"all runs train on SAMPLE data with a tiny model: {settings.sample_reason}")
        self._print(f"folder  {folder}")
        if self._live:
            self._live.start()

    def show(self, moment: Moment) -> None:
        """Print what is new, or draw the table again."""
        for line in self._find_news(moment):
            if self._live is None:
                self._print(line)
        if self._live is not None and (time.monotonic() - self._drawn > REFRESH or moment.is_done):
            self._drawn = time.monotonic()
            self._live.update(self._draw(moment), refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def _print(self, text: str) -> None:
        self.console.print(printable(text), markup=False, soft_wrap=True)

    # Lines ------------------------------------------------------------------------------------------

    def _find_news(self, moment: Moment) -> Iterator[str]:
        for trial in moment.trials:
            state = name_state(trial, moment)
            if self._said.get(f"trial {trial.number}") != state:
                self._said[f"trial {trial.number}"] = state
                if self.settings.kind == "sweep":
                    yield self._describe(trial, state)
        if self.settings.kind == "repeat":
            yield from self._find_finished_seeds(moment)
        for rung, survivors in self.planner.rungs(moment.trials) if self.settings.sweep.pruner == "halving" else ():
            line = f"rung {rung + 1}: {len(survivors)} go on: trial {', '.join(str(t.number) for t in survivors)}"
            if rung and self._said.get(f"rung {rung}") != line:
                self._said[f"rung {rung}"] = line
                yield line

    def _find_finished_seeds(self, moment: Moment) -> Iterator[str]:
        for run in [run for trial in moment.trials for run in trial.runs]:
            if run.status in ("finished", "failed") and self._said.get(run.name) != run.status:
                self._said[run.name] = run.status
                yield f"{run.name} {run.status}: {run.error or f'{self.settings.metric} {format_number(run.value)}'}"

    def _describe(self, trial: Trial, state: str) -> str:
        values = ", ".join(f"{key} = {show_value(value)}" for key, value in trial.values.items())
        error = next((run.error for run in trial.runs if run.error), "") or ""
        value = (
            ""
            if trial.value is None or state == "running"
            else f", {self.settings.metric} {format_number(trial.value)}"
        )
        return f"trial {trial.number} {state}{value}: {error or values or 'the spec as it is'}"

    # Table ------------------------------------------------------------------------------------------

    def _draw(self, moment: Moment) -> Group:
        keys = list(self.settings.sweep.space)
        table = Table(box=None, pad_edge=False, header_style="bold")
        short = shorten_keys(keys)
        for title in ["trial", "state", self.settings.metric, "updates", *short]:
            table.add_column(title, no_wrap=True)
        for trial in self._choose_rows(moment):
            state = name_state(trial, moment)
            cells = [str(trial.number), state, format_number(trial.value), self._progress(trial, moment)]
            cells += [show_value(trial.values.get(key)) for key in keys]
            table.add_row(*(Text(printable(cell)) for cell in cells), style=STYLES.get(state))
        counts = dict.fromkeys(STYLES, 0)
        for trial in moment.trials:
            counts[name_state(trial, moment)] = counts.get(name_state(trial, moment), 0) + 1
        words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        title = f"{len(moment.trials)} of {self.planner.count} trials: {words}"
        return Group(Text(printable(title), style="bold"), table)

    def _choose_rows(self, moment: Moment) -> list[Trial]:
        running = [trial for trial in moment.trials if name_state(trial, moment) == "running"]
        others = [trial for trial in moment.trials if trial not in running]
        known = self.planner.rank([trial for trial in others if trial.value is not None])
        rest = [trial for trial in others if trial.value is None]
        room = max(5, min(MOST_ROWS, self.console.height - 4))
        return [*running, *known, *rest][:room]

    def _progress(self, trial: Trial, moment: Moment) -> str:
        run = next((run for run in trial.runs if run.name in moment.running), trial.runs[-1])
        total = f"/{run.total}" if run.total else ""
        return f"{self._last_step(run.name) if run.name in moment.running else run.updates}{total}"

    def _last_step(self, name: str) -> str:
        """Return the last update that a run has logged. Only what is new in its log is read."""
        tail, step = self._tails.get(name) or (LogTail(self.folder / name / LOG), "0")
        records, _ = tail.read_new()
        steps = [str(record["step"]) for record in records if "step" in record]
        self._tails[name] = tail, steps[-1] if steps else step
        return self._tails[name][1]


def name_state(trial: Trial, moment: Moment) -> str:
    """Return the state of a trial as a person reads it."""
    if trial.has_failed:
        return "failed"
    if trial.is_finished:
        return "finished"
    if any(run.name in moment.running for run in trial.runs):
        return "running"
    return ("pruned" if moment.is_done else "paused") if trial.is_paused else "waiting"


def show_value(value: object) -> str:
    """Write a value of the space shortly."""
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def shorten_keys(keys: list[str]) -> list[str]:
    """Return the last part of each key, or all of it where two would look the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return [short if last.count(short) == 1 else key for short, key in zip(last, keys, strict=True)]
