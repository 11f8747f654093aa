"""Which rows an update sees: a function of seed and epoch. The update number is the only position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taskrecipe.training.randomness import Purpose, make_generator

Rows = NDArray[np.int64]

BUCKET_UPDATES = 50
"""Updates whose rows are sorted by length together: enough for similar lengths, few enough to stay random."""


@dataclass(frozen=True)
class Order:
    """The order of the training rows in every epoch, split into updates."""

    size: int
    batch_size: int
    seed: int
    kind: Literal["shuffled", "bucketed", "sequential"] = "shuffled"
    lengths: Sequence[int] | None = None
    draw: Callable[[np.random.Generator], Sequence[int] | None] | None = None
    """Returns the rows of an epoch where they are not each row once; always the same number of rows."""

    @property
    def updates_per_epoch(self) -> int:
        """The number of updates in an epoch. The last one may have fewer rows."""
        return -(-self._epoch_size // self.batch_size)

    def rows(self, update: int) -> Rows:
        """Return the rows of an update, counted from 0 over all epochs."""
        epoch, position = divmod(update, self.updates_per_epoch)
        return _cached_epoch(self, epoch)[position]

    def epoch(self, epoch: int) -> list[Rows]:
        """Return the rows of each update of one epoch."""
        rows = self._draw_epoch(epoch)
        if self.kind == "sequential":
            return _split_rows(rows, self.batch_size)
        random = make_generator(Purpose.ORDER, self.seed, epoch)
        shuffled = random.permutation(rows)
        if self.kind == "shuffled":
            return _split_rows(shuffled, self.batch_size)
        return self._bucketed(shuffled, random)

    def _bucketed(self, shuffled: Rows, random: np.random.Generator) -> list[Rows]:
        if self.lengths is None:
            raise ValueError("bucketed order needs lengths")
        lengths = np.asarray(self.lengths)
        buckets = _split_rows(shuffled, self.batch_size * BUCKET_UPDATES)
        updates = [
            update
            for bucket in buckets
            for update in _split_rows(bucket[np.argsort(-lengths[bucket], kind="stable")], self.batch_size)
        ]
        return [updates[i] for i in random.permutation(len(updates))]

    def _draw_epoch(self, epoch: int) -> Rows:
        drawn = self.draw(make_generator(Purpose.DRAW, self.seed, epoch)) if self.draw else None
        return np.arange(self.size) if drawn is None else np.asarray(drawn, dtype=np.int64)

    @property
    def _epoch_size(self) -> int:
        return len(_first_epoch_rows(self)) if self.draw else self.size

    # The dataclass's own hash would hash every length; two orders are the same only if they are one.
    __hash__ = object.__hash__


def split_evenly(rows: Rows, parts: int) -> list[Rows]:
    """Split an update's rows into `parts` consecutive, nearly equal parts. Some are empty if there are few rows."""
    return list(np.array_split(rows, parts))


def evaluation_batches(size: int, batch_size: int, lengths: Sequence[int] | None) -> list[Rows]:
    """Return every row once, similar lengths together. The number of processes doesn't change the batches."""
    rows = np.arange(size) if lengths is None else np.argsort(-np.asarray(lengths), kind="stable")
    return _split_rows(rows, batch_size)


def _split_rows(rows: Rows, size: int) -> list[Rows]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@lru_cache(maxsize=4)
def _cached_epoch(order: Order, epoch: int) -> list[Rows]:
    return order.epoch(epoch)


@lru_cache(maxsize=4)
def _first_epoch_rows(order: Order) -> Rows:
    return order._draw_epoch(0)
