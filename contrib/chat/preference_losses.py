"""Losses over pairs of answers: DPO, IPO, SimPO and ORPO."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def dpo_loss(rewards: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Return the loss of each pair, given the rewards of both answers; with a share of pairs labeled wrongly.

    The reward of an answer is beta times the log ratio of the model's and the reference's probability of it.
    """
    from torch.nn.functional import logsigmoid

    margin = rewards[:, 0] - rewards[:, 1]
    return -(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)


def ipo_loss(mean_ratios: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the loss of each pair: the distance of the margin per token from 1 / (2 beta), squared."""
    return (mean_ratios[:, 0] - mean_ratios[:, 1] - 1 / (2 * beta)) ** 2


def simpo_loss(means: torch.Tensor, beta: float, gap: float, smoothing: float = 0.0) -> torch.Tensor:
    """Return the loss of each pair, given the mean log probability of a token in each answer. `gap` is the margin."""
    import torch

    rewards = beta * means
    return dpo_loss(rewards - torch.tensor([gap, 0.0], dtype=means.dtype, device=means.device), smoothing)


def orpo_loss(means: torch.Tensor, beta: float) -> torch.Tensor:
    """Return the loss of each pair: the better answer's mean loss, and beta times the loss of the odds' ratio."""
    import torch
    from torch.nn.functional import logsigmoid

    odds = means - torch.log1p(-torch.exp(means))
    return -means[:, 0] - beta * logsigmoid(odds[:, 0] - odds[:, 1])
