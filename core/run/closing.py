"""What is printed when a run has finished: its best metrics, where everything is, and the commands to go on with."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from taskrecipe.run.launchers import is_first
from taskrecipe.system.terminal import SafeStream, printable

if TYPE_CHECKING:
    from taskrecipe.run.handle import Run

MOST_METRICS = 12
"""A recipe with many classes may report one metric for each. The rest is in results.json."""


def print_closing(run: Run, stream: TextIO | None = None) -> None:
    """Print how a run ended. Of several processes, one prints."""
    if is_first():
        lines = [*describe_metrics(run.results), *describe_next(run), *describe_best(run)]
        print("\n".join(map(printable, lines)), file=cast(TextIO, SafeStream(stream or sys.stderr)), flush=True)


def describe_metrics(results: dict[str, Any]) -> Iterator[str]:
    """Yield a table of the metrics of the best and of the last evaluation."""
    best, final = results.get("best"), results.get("final") or {}
    if not best:
        return
    names = [best["metric"], *(name for name in best["metrics"] if name != best["metric"])]
    columns = [f"best (update {best['step']})", f"last (update {results['updates']})"]
    width = max(map(len, ["metric", *names[:MOST_METRICS]]))
    yield f"{'metric':<{width}}  " + "  ".join(columns)
    for name in names[:MOST_METRICS]:
        numbers = [
            _number(table.get(name)).rjust(len(column))
            for table, column in zip((best["metrics"], final), columns, strict=True)
        ]
        yield f"{name:<{width}}  " + "  ".join(numbers)
    if len(names) > MOST_METRICS:
        yield f"… and {len(names) - MOST_METRICS} more in results.json"


def describe_next(run: Run) -> Iterator[str]:
    """Yield the commands to go on with."""
    folder = shlex.quote(str(run.folder))
    yield "next:"
    yield f"  recipe report {folder}"
    yield f"  recipe predict {folder} INPUT -o predictions.jsonl"
    train = run.spec.train
    key, count = ("epochs", train.epochs) if train.epochs else ("updates", train.updates)
    yield f"  recipe resume {folder} --set train.{key}={2 * (count or 1)} --allow train.{key}   # train longer"


def describe_best(run: Run) -> Iterator[str]:
    """Yield the two lines that scripts read: the best metric and the run's folder."""
    best = run.results.get("best")
    if best:
        yield f"best {best['metric']} {best['value']:.4f} after update {best['step']}"
    yield f"run folder: {run.folder}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
