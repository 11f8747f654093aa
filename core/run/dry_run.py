"""`recipe run --dry`: what a run would do and cost. A few of its updates are measured, and nothing is kept."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from taskrecipe.checkpoints.safetensors_file import tensors_size
from taskrecipe.run.prepare import Prepared, prepare_run
from taskrecipe.spec.resolve import Resolved
from taskrecipe.spec.spec import Spec
from taskrecipe.system.quantities import format_bytes
from taskrecipe.training.loop import Loop
from taskrecipe.training.precision import describe_precision
from taskrecipe.training.setup import make_loop, warmup_updates

MEASURED = 5
"""Updates that are measured. The first is not timed, since it also warms up."""


def measure_plan(resolved: Resolved, accelerator: Accelerator) -> tuple[dict[str, str], float]:
    """Return what the run would do and cost, line by line, and how many seconds its updates take."""
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare_run(resolved.spec, accelerator, Path(scratch) / "sample")
        loop = make_loop(prepared.recipe, prepared.module, prepared.rows, accelerator, effects=prepared.effects)
        costs, seconds = _measure_costs(loop)
        return {**_describe_sizes(prepared, loop), **costs}, seconds


def _describe_sizes(prepared: Prepared, loop: Loop) -> dict[str, str]:
    """Return what is known without running the model."""
    spec, module = loop.spec, loop.state.module
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    lengths = None if spec.data.streaming else prepared.recipe.lengths(prepared.rows["train"])
    lines = {
        "recipe": spec.recipe,
        "data": prepared.loaded.origin,
        "rows": ", ".join(f"{split} {_count(rows)}" for split, rows in prepared.rows.items()),
        "updates": f"{loop.total:,}" + (f" ({loop.per_epoch:,} an epoch)" if loop.per_epoch else ""),
        "warmup": f"{warmup_updates(spec, loop.total):,} updates",
        "batch": f"{spec.train.batch_size} rows an update, {_describe_cut(spec)}",
        "parameters": f"{trained:,} trained of {sum(p.numel() for p in module.parameters()):,}",
        "best by": f"{loop.best_metric[0]} ({loop.best_metric[1]})",
    }
    if unusual := describe_precision(spec.train.precision, loop.accelerator.device):
        lines["precision"] = unusual
    if lengths is not None:
        lines["tokens an epoch"] = f"{sum(lengths):,}"
    return lines


def _measure_costs(loop: Loop) -> tuple[dict[str, str], float]:
    """Return what a few updates say about time, memory and disk, and how many seconds all updates take."""
    loop.model.train()
    seconds = _measure_seconds(loop)
    contents, cut = loop.state.contents(), loop.state.updates.cut
    found = {} if cut.is_fixed else {"micro-batches": f"{cut.parts} a process, of {cut.rows} rows, fit in memory here"}
    size = sum(len(part) if isinstance(part, bytes) else tensors_size(part) for part in contents.values())
    free = shutil.disk_usage(Path.cwd()).free
    kept = loop.spec.checkpoint.keep + 2  # the best may be another one, and a new one is written before an old one goes
    costs = {
        **found,
        "checkpoint": f"{format_bytes(size)} each, {format_bytes(size * kept)} at most; {format_bytes(free)} free here",
        "memory": f"{loop.throughput.read()['memory_mb']:,.0f} MiB at the peak so far",
        "an update": f"{seconds * 1000:.1f} ms",
        "training": f"about {_duration(seconds * loop.total)}, without evaluations",
    }
    return costs, seconds * loop.total


def _describe_cut(spec: Spec) -> str:
    if spec.train.accumulate == "auto":
        return "as many micro-batches as memory needs"
    return f"{spec.train.accumulate} micro-batch(es) a process"


def _measure_seconds(loop: Loop) -> float:
    """Return the median time of an update."""
    times = []
    with closing(loop.state.updates(0)) as updates:
        for update in islice(updates, min(MEASURED, loop.total)):
            start = time.perf_counter()
            loop.take(update)
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times)


def _count(rows: Any) -> str:
    return f"{len(rows):,}" if hasattr(rows, "__len__") else "streamed"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
