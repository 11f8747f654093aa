"""Documents as one long array of tokens, and the ways to cut it into rows that a model takes.

A split is cut as a whole: its tokens are in memory at that time, at a few bytes each, and none is touched by Python.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

Array = NDArray[Any]

ROWS_PER_BLOCK = 100_000
"""Rows of one Arrow array, whose 32-bit offsets could not number every token of a large split."""


@dataclass(frozen=True)
class Ragged:
    """Lists of unequal length, end to end: list `i` is `values[offsets[i]:offsets[i + 1]]`."""

    values: Array
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Any], dtype: Any = np.int32) -> Ragged:
        """Lay lists end to end."""
        arrays = [np.asarray(one, dtype=dtype) for one in lists]
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), _offsets([len(array) for array in arrays]))

    @classmethod
    def column(cls, rows: Dataset, name: str) -> Ragged:
        """A column of lists."""
        chunks = rows.with_format("arrow")[:][name].chunks
        lengths = [np.diff(np.asarray(chunk.offsets)) for chunk in chunks]
        return cls(np.concatenate([np.asarray(chunk.flatten()) for chunk in chunks]), _offsets(np.concatenate(lengths)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How long each list is."""
        return np.diff(self.offsets)

    def chunks(self, length: int) -> Ragged:
        """The same values cut every `length`, wherever lists began; the last may be short."""
        starts = np.arange(0, len(self.values), length)
        return Ragged(self.values, np.append(starts, len(self.values)))

    def pieces(self, length: int) -> Ragged:
        """Each list cut every `length`, its last piece as long as it comes out; empty lists vanish.

        A last piece of one value takes another from the piece before: a token alone has none to be predicted from.
        """
        counts = -(-self.lengths // length)
        ends = np.cumsum(counts)
        number = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
        starts = np.repeat(self.offsets[:-1], counts) + length * number
        starts[ends[(self.lengths % length == 1) & (counts > 1)] - 1] -= 1
        return Ragged(self.values, np.append(starts, self.offsets[-1:]))

    def keep(self, mask: NDArray[np.bool_]) -> Ragged:
        """Only the lists that `mask` says."""
        return Ragged(self.values[np.repeat(mask, self.lengths)], _offsets(self.lengths[mask]))

    def take(self, numbers: Sequence[int]) -> Ragged:
        """The lists of these numbers, in this order."""
        lists = [self.values[self.offsets[i] : self.offsets[i + 1]] for i in numbers]
        return Ragged(np.concatenate([self.values[:0], *lists]), _offsets(self.lengths[numbers]))

    def wrap(self, before: Sequence[int], after: Sequence[int]) -> Ragged:
        """Each list between the values `before` and `after`."""
        offsets = self.offsets + np.arange(len(self) + 1) * (len(before) + len(after))
        values, inner = np.empty(offsets[-1], self.values.dtype), np.ones(offsets[-1], dtype=bool)
        edges = [offsets[:-1] + i for i in range(len(before))] + [offsets[1:] - i for i in range(len(after), 0, -1)]
        for places, value in zip(edges, [*before, *after], strict=True):
            values[places], inner[places] = value, False
        values[inner] = self.values
        return Ragged(values, offsets)

    def positions(self) -> Ragged:
        """The place of every value in its list, from 0; no list may be empty."""
        steps = np.ones(len(self.values), np.int32)
        steps[self.offsets[1:-1]] -= self.lengths[:-1].astype(np.int32)
        steps[:1] = 0
        return Ragged(np.cumsum(steps, dtype=np.int32), self.offsets)

    def join(self, counts: Array) -> Ragged:
        """Neighbouring lists made one: as many at a time as `counts` says."""
        return Ragged(self.values, self.offsets[_offsets(counts)])


def pack(lengths: Array, capacity: int) -> list[list[int]]:
    """Put items of these lengths into as few bins of `capacity` as may be: the longest first, where it fits best."""
    bins: list[list[int]] = []
    by_room: dict[int, list[int]] = defaultdict(list)
    rooms: list[int] = []
    for item in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[item])
        place = bisect_left(rooms, length)
        if place == len(rooms):
            room, chosen = capacity, len(bins)
            bins.append([])
        else:
            room = rooms[place]
            chosen = by_room[room].pop()
            if not by_room[room]:
                rooms.pop(place)
        bins[chosen].append(item)
        left = room - length
        if not by_room[left]:
            insort(rooms, left)
        by_room[left].append(chosen)
    return bins


def as_rows(columns: dict[str, Ragged]) -> Dataset:
    """A data set with a column for each name."""
    import pyarrow as pa
    from datasets import Dataset

    return Dataset(pa.table({name: _arrow(lists) for name, lists in columns.items()}))


def _arrow(lists: Ragged) -> pa.ChunkedArray:
    import pyarrow as pa

    arrays = []
    for start in range(0, len(lists), ROWS_PER_BLOCK):
        offsets = lists.offsets[start : start + ROWS_PER_BLOCK + 1]
        values = pa.array(lists.values[offsets[0] : offsets[-1]])
        arrays.append(pa.ListArray.from_arrays((offsets - offsets[0]).astype(np.int32), values))
    return pa.chunked_array(arrays, type=pa.list_(pa.from_numpy_dtype(lists.values.dtype)))


def _offsets(lengths: Any) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))])
