"""The sum of cross entropies over a projection, with gradients that are computed while the logits are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from typing_extensions import override

if TYPE_CHECKING:
    from taskrecipe.text.projection import Projection


class FusedLoss(torch.autograd.Function):
    """Returns the sum of the losses, and each negative log likelihood without a gradient."""

    @override
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        projection: Projection,
        smoothing: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        needs = ctx.needs_input_grad
        to_hidden = torch.empty_like(hidden) if needs[0] else None
        to_weight = torch.zeros_like(weight) if needs[1] else None
        to_bias = torch.zeros_like(bias) if bias is not None and needs[2] else None
        matrix = weight.to(hidden.dtype)
        nll = torch.empty(len(targets), dtype=exact, device=hidden.device)
        total = torch.zeros((), dtype=exact, device=hidden.device)
        for part in projection.chunks(len(targets), len(weight)):
            states, wanted = hidden[part], targets[part, None]
            logits = torch.nn.functional.linear(states, matrix, None if bias is None else bias.to(hidden.dtype))
            logits = projection.change(logits.to(exact))
            slope = None if projection.cap is None else 1 - (logits / projection.cap) ** 2
            scores = torch.log_softmax(logits, -1)
            del logits
            nll[part] = -scores.gather(-1, wanted)[:, 0]
            total += nll[part].sum() * (1 - smoothing)
            if smoothing:
                total -= scores.mean(-1).sum() * smoothing
            gradient = _differentiate(scores, wanted, smoothing, projection.scale)
            gradient = gradient if slope is None else gradient.mul_(slope)
            _add_gradients(
                gradient, states, matrix, (None if to_hidden is None else to_hidden[part], to_weight, to_bias)
            )
        ctx.save_for_backward(to_hidden, to_weight, to_bias)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @override
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        saved = [value if value is None else value * gradients[0].to(value.dtype) for value in ctx.saved_tensors]
        return (*saved, None, None, None)


def _differentiate(scores: torch.Tensor, wanted: torch.Tensor, smoothing: float, scale: float) -> torch.Tensor:
    """Return the gradient of the losses to the logits of the layer, in place of the log probabilities."""
    gradient = scores.exp_()
    if smoothing:
        gradient -= smoothing / scores.shape[-1]
    gradient.scatter_add_(-1, wanted, torch.full_like(wanted, -(1.0 - smoothing), dtype=scores.dtype))
    return gradient.mul_(scale) if scale != 1.0 else gradient


def _add_gradients(
    gradient: torch.Tensor,
    states: torch.Tensor,
    matrix: torch.Tensor,
    sums: tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None],
) -> None:
    """Write the gradient of the states, and add those of weight and bias."""
    to_states, to_weight, to_bias = sums
    if to_bias is not None:
        to_bias += gradient.sum(0)
    gradient = gradient.to(matrix.dtype)
    if to_states is not None:
        torch.mm(gradient, matrix, out=to_states)
    if to_weight is not None and to_weight.dtype == gradient.dtype:
        to_weight.addmm_(gradient.t(), states)
    elif to_weight is not None:
        to_weight += gradient.t() @ states
