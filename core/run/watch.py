"""`recipe watch`: a live view of a run, made from its log alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from taskrecipe.report.chart import thin_points
from taskrecipe.report.history import History, HistoryReader, as_number
from taskrecipe.run.console import RunConsole
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import LOG
from taskrecipe.run.lock import find_live_holder
from taskrecipe.run.log_tail import LogTail
from taskrecipe.system.quantities import format_bytes, format_duration, format_number
from taskrecipe.system.secrets import to_json
from taskrecipe.system.terminal import SafeStream, printable
from taskrecipe.training.events import read_event

INTERVAL = 0.5
"""Seconds between two looks at the log."""
BARS = "▁▂▃▄▅▆▇█"
WIDTH = 48
"""Characters of a sparkline."""
RECENT = 20
"""Updates that the speed is measured over."""

Sleep = Callable[[float], None]


def watch_run(
    folder: str | Path, stream: TextIO | None = None, sleep: Sleep = time.sleep, *, as_json: bool = False
) -> str:
    """Show a run until it ends, and return how it ended: finished, stopped, failed, or interrupted.

    On a terminal it is a view that changes; elsewhere the lines that the run itself prints; with `as_json` its events.
    """
    path = RunFolder.open(Path(folder)).path
    if as_json:
        return _watch_events(path, cast(TextIO, SafeStream(stream or sys.stdout)), sleep)
    console = Console(file=cast(TextIO, SafeStream(stream or sys.stdout)), highlight=False, emoji=False)
    return _watch_live(path, console, sleep) if console.is_terminal else _watch_lines(path, console, sleep)


class Follower:
    """What is known of a run so far."""

    def __init__(self, path: Path) -> None:
        self.path, self.is_over = path, False
        self._tail, self._reader = LogTail(path / LOG), HistoryReader()

    @property
    def history(self) -> History:
        """What has happened."""
        return self._reader.history

    @property
    def status(self) -> str:
        """Running, or how the run ended."""
        if self.history.end is not None:
            return str(self.history.end.get("status"))
        return "interrupted" if self.is_over else "running"

    def read(self) -> list[dict[str, Any]]:
        """Read what is new, and return it. Whether the run is over is asked first: its last lines are then seen."""
        self.is_over = find_live_holder(self.path) is None
        records, was_cut = self._tail.read_new()
        if was_cut:
            self._reader = HistoryReader()
        self._reader.add(records)
        return records


def _watch_live(path: Path, console: Console, sleep: Sleep) -> str:
    follower = Follower(path)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            follower.read()
            live.update(render_view(path, follower.history, follower.status), refresh=True)
            if follower.is_over:
                return follower.status
            sleep(INTERVAL)


def _watch_lines(path: Path, console: Console, sleep: Sleep) -> str:
    follower, shown = Follower(path), RunConsole(cast(TextIO, console.file))
    while True:
        for record in follower.read():
            _show_line(shown, record)
        if follower.is_over:
            if follower.status == "interrupted":
                console.print(f"interrupted: the process is gone. Continue with: recipe resume {path}", markup=False)
            return follower.status
        sleep(INTERVAL)


def _watch_events(path: Path, stream: TextIO, sleep: Sleep) -> str:
    follower = Follower(path)
    while True:
        for record in follower.read():
            print(to_json(record), file=stream, flush=True)
        if follower.is_over:
            return follower.status
        sleep(INTERVAL)


def _show_line(shown: RunConsole, record: dict[str, Any]) -> None:
    try:
        shown.show(read_event(record))
    except (KeyError, TypeError, ValueError):  # a line of another version
        return


def render_view(path: Path, history: History, status: str) -> Group:
    """Draw the state of a run."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in describe_state(history, status).items():
        table.add_row(name, Text(printable(value)))
    colors = {"running": "cyan", "finished": "green", "stopped": "yellow"}
    title = Text.assemble((printable(path.name), "bold"), "  ", (status, colors.get(status, "red")))
    warnings = [Text(printable(f"warning: {message}"), style="yellow") for message in history.warnings[-3:]]
    return Group(title, table, *warnings)


def describe_state(history: History, status: str) -> dict[str, str]:
    """Return what a view of a run shows, as names and values."""
    losses = [value for moment in history.updates if (value := moment.number("loss")) is not None]
    best = [as_number(moment.record["metrics"].get(history.best_metric)) for moment in history.evaluations]
    values = [value for value in best if value is not None]
    found = history.best
    state = {
        "updates": _describe_progress(history),
        "loss": f"{draw_sparkline(losses)}  {format_number(losses[-1])}" if losses else "–",
    }
    if found is not None and values:
        reached = format_number(as_number(found.record["metrics"].get(history.best_metric)))
        line = f"{draw_sparkline(values)}  best {reached} after update {found.step:,}"
        state[history.best_metric] = line
    state["speed"] = _describe_speed(history)
    if status == "running" and (left := estimate_left(history)) is not None:
        state["time left"] = format_duration(left)
    if history.updates and (memory := history.updates[-1].number("memory_mb")) is not None:
        state["memory"] = format_bytes(memory * 2**20)
    if history.saves:
        state["checkpoint"] = f"{history.saves[-1].record.get('checkpoint')}, {_describe_age(history)}"
    if history.end is not None:
        state["end"] = str(history.end.get("reason", ""))
    return state


def draw_sparkline(values: Sequence[float], width: int = WIDTH) -> str:
    """Draw values as a line of bars, the lowest at the bottom."""
    shown = [values[number] for number in thin_points(values, width)]
    low, high = min(shown), max(shown)
    return "".join(BARS[round((value - low) / ((high - low) or 1.0) * (len(BARS) - 1))] for value in shown)


def estimate_left(history: History) -> float | None:
    """Return the seconds that the remaining updates will take, evaluations included; None if nothing says so."""
    moments = [moment for moment in history.updates if moment.seconds is not None]
    if history.total is None or len(moments) < 2:
        return None
    first, last = moments[0], moments[-1]
    seconds = (last.seconds or 0.0) - (first.seconds or 0.0)
    return seconds / (last.step - first.step) * (history.total - last.step) if last.step > first.step else None


def _describe_progress(history: History) -> str:
    if not history.total:
        return f"{history.step:,}"
    share = min(1.0, history.step / history.total)
    filled = round(share * WIDTH)
    return f"{'━' * filled}{'╌' * (WIDTH - filled)}  {history.step:,} of {history.total:,}"


def _describe_speed(history: History) -> str:
    recent = [moment for moment in history.updates[-RECENT:] if moment.seconds is not None]
    parts = []
    if len(recent) > 1 and (seconds := (recent[-1].seconds or 0.0) - (recent[0].seconds or 0.0)) > 0:
        parts.append(f"{(recent[-1].step - recent[0].step) / seconds:.3g} updates/s")
    for name, unit in (("rows_per_second", "rows/s"), ("tokens_per_second", "tokens/s")):
        if history.updates and (value := history.updates[-1].number(name)) is not None:
            parts.append(f"{value:,.0f} {unit}")
    return ", ".join(parts) or "–"


def _describe_age(history: History) -> str:
    saved = as_number(history.saves[-1].record.get("time"))
    return f"{format_duration(max(0.0, time.time() - saved))} ago" if saved is not None else "when is unknown"
