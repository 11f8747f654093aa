"""Nothing that is not finite reaches the weights."""

from __future__ import annotations

from typing import Any

import torch

from taskrecipe.core.errors import NonFiniteError
from taskrecipe.core.training.update import Update, listed


class FiniteGuard:
    """Takes the optimizer's step only if loss and gradients are finite, without making the device wait.

    A fused optimizer skips the step on the device itself when told so there, and the verdict is read one
    update later, when it has long been there. Others have to be asked before each step.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.inner = getattr(optimizer, "optimizer", optimizer)
        self.scaled = getattr(optimizer, "scaler", None) is not None
        self.skips_on_device = getattr(self.inner, "_step_supports_amp_scaling", False) and not self.scaled
        self.awaited: tuple[torch.Tensor, torch.Tensor, Update, float] | None = None

    def step(self, update: Update, norm: torch.Tensor, learning_rate: float) -> None:
        """Move the weights by `update`, or raise and leave them as they are."""
        # With a loss scale an overflowing gradient is ordinary: the scaler skips that step and lowers the scale.
        loss = update.loss()
        bad = ~torch.isfinite(loss if self.scaled else loss + norm)
        self.settle()
        self.awaited = (bad, loss, update, learning_rate)
        if self.skips_on_device and bad.device.type != "cpu":  # a CPU has the answer already
            self.inner.grad_scale, self.inner.found_inf = None, bad.float().to(norm.device)
        else:
            self.settle()
        self.optimizer.step()

    def settle(self) -> None:
        """Read the verdict on the last update, and stop the run if it was bad."""
        if self.awaited is None:
            return
        bad, loss, update, learning_rate = self.awaited
        self.awaited = None
        if bool(bad):
            but = ", but its gradient is not finite," if bool(loss.isfinite()) else ""
            raise NonFiniteError(
                f"update {update.number + 1}: the loss is {float(loss):g}{but} at learning rate {learning_rate:g}; "
                f"the update was not taken. Rows in it: {listed(update.rows)}"
            )
