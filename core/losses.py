"""Losses that more than one recipe uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def smoothed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """The mean cross entropy over labels that are not -100, a part of each spread over all classes."""
    import torch

    # Half precision is too coarse to sum many classes in; double precision is kept.
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(
        exact.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        ignore_index=-100,
        label_smoothing=smoothing,
    )
