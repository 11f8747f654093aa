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
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(),
        labels.reshape(-1),
        ignore_index=-100,
        label_smoothing=smoothing,
    )
