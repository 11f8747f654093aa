"""`recipe predict`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from taskrecipe.errors import UsageError
from taskrecipe.system.garbage_collection import paused_garbage_collection
from taskrecipe.system.secrets import to_json
from taskrecipe.use.outputs import bad_rows_file
from taskrecipe.use.predict import Plan, predict_file, predict_lines

Progress = Callable[[int, int | None], None]


def predict(plan: Plan, given: str, out: Path | None, *, as_json: bool = False) -> None:
    """Predict rows into a file, or as JSON lines on stdout. With `as_json`, say as JSON which file was written."""
    if out is None and as_json:
        raise UsageError("--json needs -o OUT; without it the answers are JSON lines already")
    _import_libraries()
    if out is None:
        for lines in predict_lines(plan, given):
            sys.stdout.buffer.write(lines)
            sys.stdout.buffer.flush()
        return
    with _show_progress() as progress:
        left_out = predict_file(plan, given, out, progress)
    if as_json:
        bad = str(bad_rows_file(out)) if left_out else None
        print(to_json({"file": str(out), "left_out": left_out, "left_out_file": bad}))
        return
    if left_out:
        rows = "1 row was" if left_out == 1 else f"{left_out} rows were"
        print(f"{rows} left out: see {bad_rows_file(out)}", file=sys.stderr)
    print(f"answers: {out}", file=sys.stderr, flush=True)


def _import_libraries() -> None:
    """Import what every prediction needs, and take it out of garbage collection: it all stays until the end."""
    with paused_garbage_collection():
        for name in ("datasets", "transformers", "taskrecipe.use.workers"):
            import_module(name)
    gc.freeze()


@contextmanager
def _show_progress() -> Iterator[Progress]:
    """Yield what moves a progress bar on a terminal. Elsewhere, only a prediction that goes on is reported."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(file=sys.stderr, highlight=False)
    columns = TextColumn("rows"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("rows", total=None)
        begun = False

        def move(done: int, total: int | None) -> None:
            nonlocal begun
            if not begun and done:
                console.print(f"going on after {done:,} rows")
            begun = True
            bar.update(task, completed=done, total=total)

        yield move
