"""The exponential moving average of the weights, and swapping in the weights that are evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from taskrecipe.training.sharding import held_tensor, local_tensor, reshard


class Ema:
    """An exponential moving average of the trained weights, by parameter name."""

    def __init__(self, module: torch.nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        self.average = {name: held_tensor(value).detach().clone() for name, value in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights."""
        average, weights = (list(map(local_tensor, part.values())) for part in (self.average, self.parameters))
        torch._foreach_lerp_(average, weights, 1.0 - self.decay)

    @torch.no_grad()
    def restore(self, average: dict[str, torch.Tensor]) -> None:
        """Restore a saved average."""
        for name, value in average.items():
            self.average[name].copy_(value)


@contextmanager
def evaluation_weights(module: torch.nn.Module, optimizer: Any, ema: Ema | None) -> Iterator[None]:
    """Swap in the weights to evaluate, then restore the training weights exactly."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper always has both methods
    if ema is None and not switches_weights(optimizer):
        yield
        reshard(module)
        return
    reshard(module)
    named = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    trained = {name: held_tensor(value).detach().clone() for name, value in named}
    if ema is not None:
        copy_weights(ema.average, module)
    else:
        optimizer.eval()
    try:
        yield
    finally:
        reshard(module)
        if ema is None:
            optimizer.train()
        copy_weights(trained, module)


def switches_weights(optimizer: Any) -> bool:
    """Whether an optimizer keeps other weights for evaluation than for training, as schedule-free ones do."""
    return hasattr(optimizer, "eval") and hasattr(optimizer, "train")


@torch.no_grad()
def copy_weights(weights: dict[str, torch.Tensor], module: torch.nn.Module) -> None:
    """Copy weights into the module's parameters of the same names."""
    for name, value in module.named_parameters():
        if name in weights:
            held_tensor(value).copy_(weights[name])
