"""What tests do with a loop, whatever it trains."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from taskrecipe.checkpoints.store import Checkpoint, Checkpoints
from taskrecipe.recipe import Recipe, Splits
from taskrecipe.training.events import Evaluated, Updated
from taskrecipe.training.loop import Loop


def learn_and_check(recipe: Recipe, splits: Splits) -> None:
    """Let a recipe learn from its training rows, and check the rows of every split."""
    recipe.learn(splits["train"])
    for split, rows in splits.items():
        recipe.check(rows, split)


def evaluated(loop: Loop) -> dict[str, float]:
    """The metrics of the model as it is."""
    return list(loop.evaluate())[-1].metrics


def trained(loop: Loop) -> dict[str, float]:
    """The metrics at the end of the run."""
    return [event for event in loop.run() if isinstance(event, Evaluated)][-1].metrics


def gradients(loop: Loop, update: int) -> list[torch.Tensor]:
    """The gradients of one update."""
    loop.model.train()
    next(loop.state.updates(update)).compute_gradients()
    return [parameter.grad.clone() for parameter in loop.state.module.parameters() if parameter.grad is not None]


def save(loop: Loop, folder: Path) -> Checkpoint:
    """Commit a checkpoint of the loop as it is."""
    store = Checkpoints(folder, keep=1, run_id="test")
    return store.commit(loop.progress.step, loop.state.contents(), best=None)


def interrupted(loop: Loop, again: Loop, after: int) -> Loop:
    """Run `loop` until `after` updates are taken, then resume from its checkpoint in `again`."""
    for event in loop.run():
        if isinstance(event, Updated) and event.step == after:
            break
    with TemporaryDirectory() as folder:
        again.state.restore(save(loop, Path(folder)))
    list(again.run(resumed=True))
    return again


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    """A copy of the model's weights."""
    return {name: value.detach().clone() for name, value in loop.state.module.state_dict().items()}
