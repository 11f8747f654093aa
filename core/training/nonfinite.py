"""The guard that keeps NaN and infinities out of the weights, and the one place where the loop waits for a device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from taskrecipe.errors import NonFiniteError
from taskrecipe.training.order import Rows
from taskrecipe.training.update import Update, list_rows


def read_numbers(*tensors: torch.Tensor) -> list[float]:
    """Copy numbers from the device in one transfer. The loop waits for the device here and nowhere else."""
    if all(tensor.device.type == "cpu" for tensor in tensors):  # there is no transfer to save
        return [number for tensor in tensors for number in tensor.detach().reshape(-1).tolist()]
    flat = [tensor.detach().reshape(-1).float() for tensor in tensors]
    numbers: list[float] = torch.cat(flat).tolist()
    return numbers


@dataclass
class _Verdict:
    """The numbers of an update that must be finite, still on the device."""

    total: torch.Tensor
    """Not finite if the loss or a gradient is not."""
    loss: torch.Tensor
    update: int
    rows: Rows
    learning_rate: float


class NonFiniteGuard:
    """Takes the optimizer's step only if loss and gradients are finite.

    On an accelerator, a fused optimizer skips a bad step on the device itself. The verdicts are then read together
    with the numbers of the next logged update, so the guard adds no waits. Otherwise each is read before its step.
    """

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.inner = getattr(optimizer, "optimizer", optimizer)
        self.scaled = getattr(optimizer, "scaler", None) is not None
        self.can_skip = getattr(self.inner, "_step_supports_amp_scaling", False) and not self.scaled
        self.pending: list[_Verdict] = []

    def step(self, update: Update, norm: torch.Tensor, learning_rate: float) -> None:
        """Change the weights by `update`, or raise and leave them as they are."""
        # With a loss scale an overflowing gradient is normal: the scaler skips that step and lowers the scale.
        loss = update.loss()
        total = loss if self.scaled else loss + norm
        self.pending.append(_Verdict(total, loss, update.number, update.rows, learning_rate))
        if self.can_skip and self.skips_on_device(total):
            bad = ~torch.isfinite(total)
            self.inner.grad_scale, self.inner.found_inf = None, bad.float().to(norm.device)
        else:
            self.check()
        self.optimizer.step()

    def skips_on_device(self, total: torch.Tensor) -> bool:
        """Whether waiting for the verdict would cost time; a CPU has it already."""
        return total.device.type != "cpu"

    def check(self, *more: torch.Tensor) -> list[float]:
        """Read the pending verdicts, and raise for the first bad update. Return the numbers of `more`, read too."""
        verdicts, self.pending = self.pending, []
        if not verdicts and not more:
            return []
        pairs = [part for verdict in verdicts for part in (verdict.total, verdict.loss)]
        numbers = read_numbers(*pairs, *more)
        for verdict, total, loss in zip(verdicts, numbers[0::2], numbers[1::2], strict=False):
            if not math.isfinite(total):
                raise NonFiniteError(_describe(verdict, loss), verdict.update + 1)
        return numbers[len(pairs) :]


def _describe(verdict: _Verdict, loss: float) -> str:
    finite = loss - loss == 0
    return (
        f"update {verdict.update + 1}: the loss is {loss:g}{', but its gradient is not finite,' if finite else ''} "
        f"at learning rate {verdict.learning_rate:g}; the update was not taken. Rows in it: {list_rows(verdict.rows)}"
    )
