"""Spans of tokens: locate one in a window, learn to point at it, choose the best, merge those of windows."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe import Row

if TYPE_CHECKING:
    import torch


def locate_span(places: NDArray[Any], begin: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last token of the characters from `begin` to `end`; None if not all are there.

    `places` has the characters that each token begins and ends at, or -1 where the token isn't of this text.
    """
    inner = np.flatnonzero(places[:, 0] >= 0)
    if not len(inner) or begin < places[inner[0], 0] or end > places[inner[-1], 1]:
        return None
    first = inner[np.searchsorted(places[inner, 0], begin, side="right") - 1]
    last = inner[np.searchsorted(places[inner, 1], end, side="left")]
    return int(first), int(last)


def pointing_loss(logits: torch.Tensor, targets: torch.Tensor, seen: torch.Tensor, smoothing: float) -> torch.Tensor:
    """Return the mean cross entropy of pointing at one of the `seen` positions, smoothed over all of those."""
    return pointing_losses(logits, targets, seen, smoothing).mean()


def pointing_losses(
    logits: torch.Tensor, targets: torch.Tensor, seen: torch.Tensor, smoothing: float = 0.0
) -> torch.Tensor:
    """Return the cross entropy of each row."""
    import torch

    # Half precision is too coarse to sum a long window in; double precision, as tests use, is kept.
    exact = logits if logits.dtype == torch.float64 else logits.float()
    likelihood = exact.masked_fill(~seen, float("-inf")).log_softmax(-1)
    right = likelihood.gather(-1, targets[:, None]).squeeze(-1)
    spread = likelihood.masked_fill(~seen, 0.0).sum(-1) / seen.sum(-1)
    return -((1.0 - smoothing) * right + smoothing * spread)


def best_spans(
    starts: torch.Tensor, ends: torch.Tensor, allowed: torch.Tensor, longest: int, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the score, first and last token of each row's `count` best spans, the best first.

    A span lies within `allowed` and has at most `longest` tokens. Where a row has fewer spans, scores are -inf.
    """
    import torch
    from torch.nn.functional import pad

    never, longest = float("-inf"), min(longest, starts.shape[-1])
    firsts, lasts = starts.masked_fill(~allowed, never), ends.masked_fill(~allowed, never)
    # For each first token, the `longest` last tokens that may go with it.
    reachable = pad(lasts, (0, longest - 1), value=never).unfold(-1, longest, 1)
    scores = (firsts[..., None] + reachable).flatten(1)
    best = []
    for _ in range(count):  # of equal scores `max` takes the first, at any width of the batch; `topk` takes any
        score, place = scores.max(-1)
        scores.scatter_(1, place[:, None], never)
        best.append((score, place // longest, place // longest + place % longest))
    score, first, last = (torch.stack(values, 1) for values in zip(*best, strict=True))
    return score, first, last


def merge_candidates(windows: Iterable[list[Row]], count: int) -> list[Row]:
    """Return the `count` best candidates of several windows. Windows overlap: a span found twice is kept once."""
    best: dict[tuple[int, int], Row] = {}
    for candidate in chain.from_iterable(windows):
        place = candidate["start"], candidate["end"]
        if place not in best or candidate["score"] > best[place]["score"]:
            best[place] = candidate
    return sorted(best.values(), key=lambda candidate: -candidate["score"])[:count]
