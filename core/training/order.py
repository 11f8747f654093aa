"""Which rows an update sees: a function of seed and epoch, with the update number as the only position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taskrecipe.core.training.randomness import Purpose, generator

Rows = NDArray[np.int64]

BUCKET_UPDATES = 50
"""Updates whose rows are sorted by length together: enough for like lengths, few enough to stay random."""


@dataclass(frozen=True)
class Order:
    """The order of a data set's rows, epoch by epoch, cut into updates."""

    size: int
    batch_size: int
    seed: int
    kind: Literal["shuffled", "bucketed", "sequential"] = "shuffled"
    lengths: Sequence[int] | None = None
    draw: Callable[[np.random.Generator], Sequence[int] | None] | None = None
    """The rows of an epoch where they are not simply each row once; always equally many."""

    @property
    def updates_per_epoch(self) -> int:
        """How many updates an epoch has; the last may be short."""
        return -(-self._epoch_size // self.batch_size)

    def rows(self, update: int) -> Rows:
        """The rows of an update, counted from 0 over all epochs."""
        epoch, position = divmod(update, self.updates_per_epoch)
        return _epoch(self, epoch)[position]

    def epoch(self, epoch: int) -> list[Rows]:
        """The updates of one epoch."""
        rows = self._drawn(epoch)
        if self.kind == "sequential":
            return _cut(rows, self.batch_size)
        random = generator(Purpose.ORDER, self.seed, epoch)
        shuffled = random.permutation(rows)
        if self.kind == "shuffled":
            return _cut(shuffled, self.batch_size)
        return self._bucketed(shuffled, random)

    def _bucketed(self, shuffled: Rows, random: np.random.Generator) -> list[Rows]:
        if self.lengths is None:
            raise ValueError("bucketed order needs lengths")
        lengths = np.asarray(self.lengths)
        buckets = _cut(shuffled, self.batch_size * BUCKET_UPDATES)
        updates = [
            update
            for bucket in buckets
            for update in _cut(bucket[np.argsort(-lengths[bucket], kind="stable")], self.batch_size)
        ]
        return [updates[i] for i in random.permutation(len(updates))]

    def _drawn(self, epoch: int) -> Rows:
        drawn = self.draw(generator(Purpose.DRAW, self.seed, epoch)) if self.draw else None
        return np.arange(self.size) if drawn is None else np.asarray(drawn, dtype=np.int64)

    @property
    def _epoch_size(self) -> int:
        return len(_first_draw(self)) if self.draw else self.size

    # The dataclass's own hash would hash every length; two orders are the same only if they are one.
    __hash__ = object.__hash__


def shares(rows: Rows, parts: int) -> list[Rows]:
    """Cut an update's rows into `parts` neighbouring, nearly equal parts; some are empty if rows are few."""
    return list(np.array_split(rows, parts))


def evaluation_batches(size: int, batch_size: int, lengths: Sequence[int] | None) -> list[Rows]:
    """Every row once, like lengths together; the same batches whatever the number of processes."""
    rows = np.arange(size) if lengths is None else np.argsort(-np.asarray(lengths), kind="stable")
    return _cut(rows, batch_size)


def _cut(rows: Rows, size: int) -> list[Rows]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@lru_cache(maxsize=4)
def _epoch(order: Order, epoch: int) -> list[Rows]:
    return order.epoch(epoch)


@lru_cache(maxsize=4)
def _first_draw(order: Order) -> Rows:
    return order._drawn(0)
