"""`recipe run --dry`: what a run would do and cost, with a few of its updates measured and then forgotten."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from rich.table import Table

from taskrecipe.core.checkpoints.state import pack
from taskrecipe.core.checkpoints.tensorfile import size
from taskrecipe.core.run import Prepared, prepare
from taskrecipe.core.spec.resolve import Resolved
from taskrecipe.core.training.assembly import assemble, warmup_updates
from taskrecipe.core.training.finite import FiniteGuard
from taskrecipe.core.training.loop import Loop
from taskrecipe.core.training.meters import Meters

MEASURED = 5
"""Updates that are measured; the first is left out of the time, since it also warms up."""


def print_plan(resolved: Resolved, accelerator: Accelerator) -> None:
    """Print the plan; nothing of it is kept."""
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(resolved, accelerator, Path(scratch))
        loop = assemble(prepared.recipe, prepared.module, prepared.rows, accelerator)
        lines = {**_sizes(prepared, loop), **_costs(loop)}
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in lines.items():
        table.add_row(name, value)
    if accelerator.is_main_process:
        Console(highlight=False, soft_wrap=True).print(table)


def _sizes(prepared: Prepared, loop: Loop) -> dict[str, str]:
    """What is known without running anything."""
    spec, loaded = loop.spec, prepared.loaded
    trained = sum(p.numel() for p in prepared.module.parameters() if p.requires_grad)
    lengths = None if spec.data.streaming else prepared.recipe.lengths(prepared.rows["train"])
    lines = {
        "recipe": spec.recipe,
        "data": loaded.origin,
        "rows": ", ".join(f"{split} {_size(rows)}" for split, rows in prepared.rows.items()),
        "updates": f"{loop.total:,}" + (f" ({loop.per_epoch:,} an epoch)" if loop.per_epoch else ""),
        "warmup": f"{warmup_updates(spec, loop.total):,} updates",
        "batch": f"{spec.train.batch_size} rows an update, {spec.train.accumulate} micro-batch(es) a process",
        "parameters": f"{trained:,} trained of {sum(p.numel() for p in prepared.module.parameters()):,}",
        "best by": f"{loop.best_metric[0]} ({loop.best_metric[1]})",
    }
    if lengths is not None:
        lines["tokens an epoch"] = f"{sum(lengths):,}"
    return lines


def _costs(loop: Loop) -> dict[str, str]:
    """What a few updates tell about time, memory and disk."""
    loop.model.train()
    seconds = _measure(loop)
    state = size(loop.module.state_dict()) + size(pack(loop.optimizer.state_dict())[0])
    state += size(loop.average.shadow) if loop.average else 0
    free = shutil.disk_usage(Path.cwd()).free
    kept = loop.spec.checkpoint.keep + 2  # the best may be another, and a new one is written before an old one goes
    return {
        "checkpoint": f"{_bytes(state)} each, {_bytes(state * kept)} at the most; {_bytes(free)} free here",
        "memory": f"{Meters(loop.accelerator.device).read()['memory_mb']:,.0f} MiB at the peak so far",
        "an update": f"{seconds * 1000:.1f} ms",
        "training": f"about {_duration(seconds * loop.total)}, evaluations not counted",
    }


def _measure(loop: Loop) -> float:
    """Seconds of an update: the median of a few."""
    times = []
    meters, guard = Meters(loop.accelerator.device), FiniteGuard(loop.optimizer)
    for update in islice(loop.updates(0), min(MEASURED, loop.total)):
        start = time.perf_counter()
        loop.take(update, meters, guard)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times)


def _size(rows: Any) -> str:
    return f"{len(rows):,}" if hasattr(rows, "__len__") else "streamed"


def _bytes(amount: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}" if unit != "B" else f"{amount:.0f} B"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
