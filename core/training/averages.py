"""The weights that are evaluated and exported, where they are not the ones being trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class MovingAverage:
    """An exponential moving average of the weights."""

    def __init__(self, module: torch.nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = dict(module.named_parameters())
        self.shadow = {name: value.detach().clone() for name, value in self.parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights."""
        torch._foreach_lerp_(list(self.shadow.values()), list(self.parameters.values()), 1.0 - self.decay)

    @torch.no_grad()
    def restore(self, shadow: dict[str, torch.Tensor]) -> None:
        """Take back a saved average."""
        for name, value in shadow.items():
            self.shadow[name].copy_(value)


@contextmanager
def evaluation_weights(module: torch.nn.Module, optimizer: Any, average: MovingAverage | None) -> Iterator[None]:
    """Put in place the weights that count, and afterwards the trained ones, to the bit."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper has the methods in any case
    switches = hasattr(optimizer, "eval") and hasattr(optimizer, "train")  # schedule-free optimizers do
    if average is None and not switches:
        yield
        return
    trained = {name: value.detach().clone() for name, value in module.named_parameters()}
    if average is not None:
        _copy(average.shadow, module)
    else:
        optimizer.eval()
    try:
        yield
    finally:
        if average is None:
            optimizer.train()
        _copy(trained, module)


@torch.no_grad()
def _copy(weights: dict[str, torch.Tensor], module: torch.nn.Module) -> None:
    for name, value in module.named_parameters():
        value.copy_(weights[name])
