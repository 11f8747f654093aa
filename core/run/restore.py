"""Resuming a run: its newest valid checkpoint is found, compared with what the run is now, and restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from taskrecipe.checkpoints.store import Checkpoint, Checkpoints
from taskrecipe.errors import RecipeError
from taskrecipe.run.resume_guard import match_by_name, require_same_run, state_keys
from taskrecipe.training.exchange import broadcast_json, wait_for_everyone
from taskrecipe.training.loop import Loop

IDENTITY = "identity.json"
"""The file of a checkpoint that holds what the run's results are a function of."""


def restore_run(
    loop: Loop, store: Checkpoints, identity: Mapping[str, Any], allow: Sequence[str], messages: list[str]
) -> bool:
    """Restore the newest valid checkpoint in `store`; return False if there is none.

    A difference that would change results is refused, and a refusal changes nothing on disk. What the user should
    know is added to `messages`. The main process decides for all.
    """
    is_main = loop.accelerator.is_main_process
    checkpoint = _find_newest(store, is_main, messages)
    if checkpoint is None:
        return False
    saved = checkpoint.json(IDENTITY)
    for difference in require_same_run(saved, identity, allow, state_keys(loop.spec)):
        messages.append(f"changed since the checkpoint: {difference}")
    names = [[table["name"] for table in one["spec"]["callbacks"]] for one in (saved, identity)]
    loop.state.restore(checkpoint, match_by_name(*names))
    _require_best(loop, store, messages)
    wait_for_everyone()  # the main process may rename the checkpoint once nobody reads it
    return True


def _find_newest(store: Checkpoints, is_main: bool, messages: list[str]) -> Checkpoint | None:
    newest = store.newest(on_damage=messages.append) if is_main else None
    name = broadcast_json(newest.path.name if newest else None)
    return newest or (Checkpoint.read(store.folder / name) if name else None)


def _require_best(loop: Loop, store: Checkpoints, messages: list[str]) -> None:
    """Verify the best checkpoint now, since it is exported at the end. If it is lost, choose the best again."""
    best, problem = loop.progress.best, None
    if best and best.step != loop.progress.step and loop.accelerator.is_main_process:
        try:
            store.at(f"step-{best.step}").verify()
        except RecipeError as error:
            problem = f"the best checkpoint, step-{best.step}, is lost: {error}. The best is chosen again from here"
    if problem := broadcast_json(problem):
        messages.append(problem)
        loop.progress.best = None
        if loop.progress.evaluated == loop.progress.step:  # these very weights are the first candidate
            loop.progress.record_evaluation(*loop.best_metric, loop.progress.metrics, min_delta=0.0)
