"""results.json: how a run ended, and how good its best weights are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskrecipe.run.conclusion import Conclusion
from taskrecipe.training.state import Progress


def make_results(conclusion: Conclusion, about: Mapping[str, Any], timings: Mapping[str, float]) -> dict[str, Any]:
    """Return the results of a run that has finished or was stopped by a signal.

    `best` tells of the weights in `model/`, on all splits. Only if no evaluation could be the best, `final` does.
    """
    loop, prepared = conclusion.loop, conclusion.prepared
    progress = describe_progress(loop.progress)
    exported = progress["best"] or progress
    kept = "metrics" if progress["best"] else "final"
    exported[kept] = {**exported[kept], **conclusion.metrics}
    return {
        "status": "stopped" if loop.is_stopped else "finished",
        "recipe": loop.spec.recipe,
        "data": prepared.loaded.origin,
        **about,
        **progress,
        "intervals": {name: list(interval) for name, interval in conclusion.intervals.items()},
        "parameters": sum(parameter.numel() for parameter in loop.state.module.parameters()),
        "rows": {split: len(rows) for split, rows in prepared.rows.items() if hasattr(rows, "__len__")},
        "processes": loop.accelerator.num_processes,
        "device": str(loop.accelerator.device),
        "timings": {name: round(value, 3) for name, value in timings.items()},
    }


def describe_progress(progress: Progress) -> dict[str, Any]:
    """Return how far a run came, and its best and last evaluation."""
    best = dict(vars(progress.best)) if progress.best else None
    return {"updates": progress.step, "best": best, "final": progress.metrics}
