"""Losses that more than one recipe uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def smoothed_cross_entropy(logits: torch.Tensor, labels: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return the mean cross entropy with label smoothing over the labels that are not -100."""
    import torch

    # Half precision is too coarse to sum many classes in; double precision is kept.
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return torch.nn.functional.cross_entropy(
        exact.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        ignore_index=-100,
        label_smoothing=smoothing,
    )


def class_losses(logits: torch.Tensor | None, labels: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the cross entropy of each row's class, and 1 for each that counts; None unless rows have one class."""
    if logits is None or labels is None or labels.is_floating_point() or labels.ndim != 1 or logits.ndim != 2:
        return None
    return label_losses(logits[:, None], labels[:, None])


def label_losses(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the cross entropy over the labels of each row, and the number of labels that are not -100."""
    import torch

    exact = logits if logits.dtype == torch.float64 else logits.float()
    losses = torch.nn.functional.cross_entropy(
        exact.flatten(0, -2), labels.flatten(), reduction="none", ignore_index=-100
    )
    return losses.view(len(labels), -1).sum(-1), (labels != -100).view(len(labels), -1).sum(-1)
