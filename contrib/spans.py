"""Spans of tokens: finding one in a window, learning to point at it, and choosing the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch


def locate(places: NDArray[Any], begin: int, end: int) -> tuple[int, int] | None:
    """The first and the last token of the characters from `begin` to `end`; None if not all of them are there.

    `places` has the characters that each token begins and ends at, or -1 where it isn't of this text.
    """
    inner = np.flatnonzero(places[:, 0] >= 0)
    if not len(inner) or begin < places[inner[0], 0] or end > places[inner[-1], 1]:
        return None
    first = inner[np.searchsorted(places[inner, 0], begin, side="right") - 1]
    last = inner[np.searchsorted(places[inner, 1], end, side="left")]
    return int(first), int(last)


def pointing_loss(logits: torch.Tensor, targets: torch.Tensor, seen: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Cross entropy of pointing at one of the positions that are `seen`, a part of it spread over all of those."""
    import torch

    # Half precision is too coarse to sum a long window in; double precision, as tests use, is kept.
    exact = logits if logits.dtype == torch.float64 else logits.float()
    likelihood = exact.masked_fill(~seen, float("-inf")).log_softmax(-1)
    right = likelihood.gather(-1, targets[:, None]).squeeze(-1)
    spread = likelihood.masked_fill(~seen, 0.0).sum(-1) / seen.sum(-1)
    return -((1.0 - smoothing) * right + smoothing * spread).mean()


def best_spans(
    starts: torch.Tensor, ends: torch.Tensor, allowed: torch.Tensor, longest: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The score, first and last token of each row's best span within `allowed`, of at most `longest` tokens."""
    from torch.nn.functional import pad

    never, longest = float("-inf"), min(longest, starts.shape[-1])
    firsts, lasts = starts.masked_fill(~allowed, never), ends.masked_fill(~allowed, never)
    # Beside each first token, the `longest` last ones that may go with it.
    reachable = pad(lasts, (0, longest - 1), value=never).unfold(-1, longest, 1)
    score, place = (firsts[..., None] + reachable).flatten(1).max(-1)
    first = place // longest
    return score, first, first + place % longest
