"""Documents as one long array of tokens, and the ways to cut it into rows that a model takes.

A split is cut as a whole by array operations. Many tokens lie in temporary files meanwhile, and are worked on block by
block, so that memory does not grow with the text.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taskrecipe.text.large_arrays import make_array

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

Array = NDArray[Any]

VALUES_PER_BLOCK = 2**21
"""Values that are worked on at once."""

ROWS_PER_BLOCK = 100_000
"""Rows of one Arrow array. Its offsets have 32 bits, too few to number every token of a large split."""


@dataclass(frozen=True)
class Ragged:
    """Lists of unequal length, end to end: list `i` is `values[offsets[i]:offsets[i + 1]]`."""

    values: Array
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Any], dtype: Any = np.int32) -> Ragged:
        """Put lists end to end."""
        arrays = [np.asarray(one, dtype=dtype) for one in lists]
        return cls(np.concatenate([np.empty(0, dtype), *arrays]), _make_offsets([len(array) for array in arrays]))

    @classmethod
    def column(cls, rows: Dataset, name: str) -> Ragged:
        """Return a column of lists."""
        chunks = rows.with_format("arrow")[:][name].chunks
        offsets = _make_offsets(np.concatenate([np.diff(np.asarray(chunk.offsets)) for chunk in chunks]))
        values = make_array(offsets[-1], chunks[0].type.value_type.to_pandas_dtype())
        end = 0
        for chunk in chunks:
            start, end = end, end + len(chunk.flatten())
            values[start:end] = np.asarray(chunk.flatten())
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The length of each list."""
        return np.diff(self.offsets)

    def chunks(self, length: int) -> Ragged:
        """Cut all values every `length`, wherever lists begin. The last chunk may be short."""
        starts = np.arange(0, len(self.values), length)
        return Ragged(self.values, np.append(starts, len(self.values)))

    def pieces(self, length: int) -> Ragged:
        """Cut each list every `length`. Its last piece may be short, and empty lists have no piece.

        A last piece of one value takes another one from the piece before: a single token can't be predicted.
        """
        counts = -(-self.lengths // length)
        ends = np.cumsum(counts)
        number = np.arange(counts.sum()) - np.repeat(ends - counts, counts)
        starts = np.repeat(self.offsets[:-1], counts) + length * number
        starts[ends[(self.lengths % length == 1) & (counts > 1)] - 1] -= 1
        return Ragged(self.values, np.append(starts, self.offsets[-1:]))

    def piece_owners(self, length: int) -> NDArray[np.int64]:
        """Return the number of the list that each of `pieces(length)` is a part of."""
        return np.repeat(np.arange(len(self)), -(-self.lengths // length))

    def keep(self, mask: NDArray[np.bool_]) -> Ragged:
        """Return only the lists where `mask` is true."""
        count = int(mask.sum())
        if mask[:count].all():  # the first ones, as where only the last row is short
            return Ragged(self.values[: self.offsets[count]], self.offsets[: count + 1])
        offsets = _make_offsets(self.lengths[mask])
        values, end = make_array(offsets[-1], self.values.dtype), 0
        for first, last in self._blocks():
            part = self._part(first, last)
            kept = part.values[np.repeat(mask[first:last], part.lengths)]
            start, end = end, end + len(kept)
            values[start:end] = kept
        return Ragged(values, offsets)

    def take(self, numbers: Sequence[int]) -> Ragged:
        """Return the lists with these numbers, in this order."""
        offsets = _make_offsets(self.lengths[numbers])
        values = make_array(offsets[-1], self.values.dtype)
        for number, start, end in zip(numbers, offsets[:-1], offsets[1:], strict=True):
            values[start:end] = self.values[self.offsets[number] : self.offsets[number + 1]]
        return Ragged(values, offsets)

    def wrap(self, before: Sequence[int], after: Sequence[int]) -> Ragged:
        """Put the values `before` and `after` around each list."""
        offsets = self.offsets + np.arange(len(self) + 1) * (len(before) + len(after))
        values = make_array(offsets[-1], self.values.dtype)
        for first, last in self._blocks():
            block, inner = values[offsets[first] : offsets[last]], np.ones(offsets[last] - offsets[first], dtype=bool)
            edges = offsets[first : last + 1] - offsets[first]
            places = [edges[:-1] + i for i in range(len(before))] + [edges[1:] - i for i in range(len(after), 0, -1)]
            for at, value in zip(places, [*before, *after], strict=True):
                block[at], inner[at] = value, False
            block[inner] = self._part(first, last).values
        return Ragged(values, offsets)

    def positions(self) -> Ragged:
        """Return the place of every value in its list, from 0. No list may be empty."""
        values = make_array(len(self.values), np.int32)
        for first, last in self._blocks():
            part = self._part(first, last)
            steps = np.ones(len(part.values), np.int32)
            steps[part.offsets[1:-1]] -= part.lengths[:-1].astype(np.int32)
            steps[:1] = 0
            np.cumsum(steps, dtype=np.int32, out=values[self.offsets[first] : self.offsets[last]])
        return Ragged(values, self.offsets)

    def join(self, counts: Array) -> Ragged:
        """Join neighboring lists: first the first `counts[0]` lists, then the next `counts[1]`, and so on."""
        return Ragged(self.values, self.offsets[_make_offsets(counts)])

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of lists that are worked on at once. A list is never divided."""
        first = 0
        while first < len(self):
            last = int(np.searchsorted(self.offsets, self.offsets[first] + VALUES_PER_BLOCK, side="right")) - 1
            last = min(max(last, first + 1), len(self))
            yield first, last
            first = last

    def _part(self, first: int, last: int) -> Ragged:
        offsets = self.offsets[first : last + 1]
        return Ragged(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def pack_lengths(lengths: Array, capacity: int) -> list[list[int]]:
    """Put items of these lengths into few bins of `capacity`: the longest first, each where it leaves least room."""
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


def make_dataset(columns: dict[str, Ragged]) -> Dataset:
    """Return a data set with a column for each name."""
    import pyarrow as pa
    from datasets import Dataset

    table = pa.table({name: _make_arrow_array(lists) for name, lists in columns.items()})
    return Dataset(table, fingerprint=secrets.token_hex(8))  # without one, datasets hashes the whole table


def _make_arrow_array(lists: Ragged) -> pa.ChunkedArray:
    import pyarrow as pa

    arrays = []
    for start in range(0, len(lists), ROWS_PER_BLOCK):
        offsets = lists.offsets[start : start + ROWS_PER_BLOCK + 1]
        values = pa.array(lists.values[offsets[0] : offsets[-1]])
        arrays.append(pa.ListArray.from_arrays((offsets - offsets[0]).astype(np.int32), values))
    return pa.chunked_array(arrays, type=pa.list_(pa.from_numpy_dtype(lists.values.dtype)))


def _make_offsets(lengths: Any) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))])
