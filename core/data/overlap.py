"""Rows that are both trained and measured on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

    from taskrecipe.core.recipe import Splits

_ROWS_AT_ONCE = 200
"""Few, as rows may hold pictures."""


def warn_of_overlap(splits: Splits, columns: Sequence[str]) -> None:
    """Tell how many rows of each other split are, in all of `columns`, also rows of `train`."""
    trained = np.unique(_hashes(splits["train"], columns))
    for split, rows in splits.items():
        count = 0 if split == "train" else int(np.isin(_hashes(rows, columns), trained).sum())
        if count:
            warnings.warn(
                f"split {split!r}: {count} of {len(rows)} rows are also in 'train': what is measured is too good",
                stacklevel=2,
            )


def _hashes(rows: Dataset, columns: Sequence[str]) -> np.ndarray:
    """A number for each row, the same for the same values within this process."""
    blocks = [
        np.fromiter(map(hash, zip(*(_hashable(table[name]) for name in columns), strict=True)), np.int64)
        for table in rows.with_format("arrow").iter(_ROWS_AT_ONCE)
    ]
    return np.concatenate([np.empty(0, np.int64), *blocks])


def _hashable(column: pa.ChunkedArray) -> list[object]:
    import pyarrow as pa

    values: list[object] = column.to_pylist()
    return [_frozen(value) for value in values] if pa.types.is_nested(column.type) else values


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return tuple(_frozen(part) for part in value.values())
    return tuple(_frozen(part) for part in value) if isinstance(value, list) else value
