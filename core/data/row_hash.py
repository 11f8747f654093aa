"""A 64-bit hash of each row's values, computed a column at a time without a Python loop over rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

Hashes = NDArray[np.uint64]

BLOCK_BYTES = 2**19
"""About how much of a data set is looked at together. Rows may hold images."""

_MISSING = np.uint64(0x9E3779B97F4A7C15)


def hash_rows(rows: Dataset, columns: Sequence[str]) -> Hashes:
    """Return a hash of each row's values in `columns`. Equal rows have equal hashes, others almost surely not."""
    blocks = [_hash_table(table, columns) for table in iterate_blocks(rows.select_columns(list(columns)))]
    return np.concatenate([np.empty(0, np.uint64), *blocks])


def iterate_blocks(rows: Dataset) -> Iterator[pa.Table]:
    """Yield rows as tables of about `BLOCK_BYTES`, so that memory doesn't grow with their number."""
    average = rows.data.nbytes // max(1, rows.data.num_rows) + 1
    yield from rows.with_format("arrow").iter(max(1, min(100_000, BLOCK_BYTES // average)))


def _hash_table(table: pa.Table, columns: Sequence[str]) -> Hashes:
    hashes = np.zeros(len(table), np.uint64)
    for name in columns:
        hashes = _mix(hashes + _hash_array(table[name].combine_chunks()))
    return hashes


def _hash_array(array: pa.Array) -> Hashes:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_null(kind):
        return np.full(len(array), _MISSING)
    if pa.types.is_nested(kind):
        frozen = [hash(_freeze(value)) for value in array.to_pylist()]
        return _mix(np.array(frozen, np.int64).view(np.uint64))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        hashes = _hash_numbers(array)
    else:
        hashes = _hash_texts(array)
    return np.where(pc.is_null(array).to_numpy(zero_copy_only=False), _MISSING, hashes) if array.null_count else hashes


def _hash_numbers(array: pa.Array) -> Hashes:
    """Hash numbers by value: 1 and 1.0 are equal, as one split may store as a float what another stores whole."""
    import pyarrow as pa

    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    floats = numbers.astype(np.float64) + 0.0  # -0.0 becomes 0.0
    hashes = floats.view(np.uint64)
    if numbers.dtype.kind in "iu" and numbers.dtype.itemsize == 8:  # large ones lose digits as floats
        with np.errstate(invalid="ignore"):
            lost = numbers.view(np.int64) - floats.astype(np.int64)
        hashes = hashes + lost.view(np.uint64) * _MISSING
    return _mix(hashes)


def _hash_texts(array: pa.Array) -> Hashes:
    """Hash each text as a sum of its bytes, each times a random number of its place in the text."""
    content, offsets = read_texts(array)
    lengths = np.diff(offsets)
    if not len(content):
        return np.zeros(len(lengths), np.uint64)
    places = np.arange(len(content)) - np.repeat(offsets[:-1] - offsets[0], lengths)
    # A byte 0 counts too, and so does its place.
    weighted = (content.astype(np.uint64) + np.uint64(1)) * _random_numbers(_round_up(int(lengths.max())))[places]
    filled = lengths > 0
    sums = np.zeros(len(lengths), np.uint64)
    sums[filled] = np.add.reduceat(weighted, (offsets[:-1] - offsets[0])[filled])
    return _mix(sums)


def read_texts(array: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of all texts, and where each begins; the last number is their end.

    Values that are neither text nor bytes are written as text: dates, decimals. A missing one is empty.
    """
    import pyarrow as pa

    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_string())
    array = array.cast(pa.large_binary()).fill_null(b"")
    _, starts, content = array.buffers()
    offsets = np.frombuffer(starts, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    if content is None or not len(array):
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(content, dtype=np.uint8)[offsets[0] : offsets[-1]], offsets


@lru_cache(maxsize=1)
def _random_numbers(count: int) -> Hashes:
    return np.random.default_rng(0).integers(0, 2**64, count, dtype=np.uint64) | np.uint64(1)


def _round_up(count: int) -> int:
    """Return the next power of two, so that few tables of random numbers are made."""
    return 1 << max(10, (count - 1).bit_length())


def _mix(hashes: Hashes) -> Hashes:
    """Spread every bit over all bits (the last steps of splitmix64)."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))


def _freeze(value: Any) -> object:
    if isinstance(value, dict):
        return tuple(_freeze(part) for part in value.values())
    return tuple(_freeze(part) for part in value) if isinstance(value, list) else value
