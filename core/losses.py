"""Losses that more than one recipe uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def smoothed(outputs: Any, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The model's own loss; or, with smoothing, the cross entropy with part of each label spread over all classes."""
    if not smoothing:
        loss: torch.Tensor = outputs.loss
        return loss
    import torch

    logits = outputs.logits
    # Half precision is too coarse to sum many classes in; double precision is kept.
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(
        exact.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        ignore_index=-100,
        label_smoothing=smoothing,
    )
