"""What tests do with a loop, whatever it trains."""

from __future__ import annotations

import copy
from concurrent.futures import Future

import torch

from taskrecipe.core.training.events import Evaluated, Saved, Updated
from taskrecipe.core.training.loop import Loop


def saving_nothing(loop: Loop) -> Loop:
    """The loop, told at once that each checkpoint is saved."""
    loop.save = lambda: _at_once(Saved(loop.progress.step, "none", 0, 0.0))
    return loop


def evaluated(loop: Loop) -> dict[str, float]:
    """The numbers of the model as it is."""
    return list(loop._evaluate())[-1].metrics


def trained(loop: Loop) -> dict[str, float]:
    """The numbers at the end of the run."""
    return [event for event in loop.run() if isinstance(event, Evaluated)][-1].metrics


def gradients(loop: Loop, update: int) -> list[torch.Tensor]:
    """The gradients of one update."""
    loop.model.train()
    loop.recipe.backward(loop.model, next(loop.updates(update)))
    return [parameter.grad.clone() for parameter in loop.module.parameters() if parameter.grad is not None]


def interrupted(loop: Loop, again: Loop, after: int) -> Loop:
    """Run `loop` until `after` updates are taken, and from there on `again`."""
    for event in loop.run():
        if isinstance(event, Updated) and event.step == after:
            break
    again.module.load_state_dict(loop.module.state_dict())
    again.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
    again.progress = copy.deepcopy(loop.progress)
    list(again.run(resumed=True))
    return again


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    """A copy of the model's weights."""
    return {name: value.detach().clone() for name, value in loop.module.state_dict().items()}


def _at_once(saved: Saved) -> Future[Saved]:
    done: Future[Saved] = Future()
    done.set_result(saved)
    return done
