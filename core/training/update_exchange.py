"""The one small exchange of an update between processes, while its last backward pass runs.

It carries three things: the loss terms of this update, whether a process has a request for the loop, and how many
items the next update has, which must be known over all processes before its first backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from taskrecipe.training.exchange import begin_sum, has_peers


@dataclass
class UpdateExchange:
    """What one update sends, and what all processes have sent together."""

    names: Sequence[str] = ()
    """The loss terms; none on a device whose numbers would have to be waited for."""
    coming: Sequence[float] = ()
    """The counts of the next update in this process, if they are known."""
    asks: Callable[[], bool] = bool
    """Says whether this process has a request for the loop."""
    terms: dict[str, float] | None = None
    """The sum of each loss term over all processes."""
    next_counts: list[float] = field(default_factory=list)
    is_asked: bool = True
    """Whether any process has a request; until that is known, one may have."""
    _finish: Callable[[], list[float]] | None = None

    def begin(self, terms: dict[str, torch.Tensor]) -> None:
        """Send. Nothing waits for it."""
        if has_peers() and self._finish is None:
            own = [float(terms[name]) if name in terms else 0.0 for name in self.names]
            self._finish = begin_sum([*own, float(self.asks()), *self.coming])

    def finish(self) -> None:
        """Receive what all processes have sent."""
        if self._finish is None:
            return
        sums, self._finish = self._finish(), None
        terms, (asked, *counts) = sums[: len(self.names)], sums[len(self.names) :]
        self.terms = dict(zip(self.names, terms, strict=True)) if self.names else None
        self.is_asked, self.next_counts = bool(asked), counts
