"""Texts to train on: what is not one is refused, what is odd is counted and told."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from taskrecipe.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

LONG_BYTES = 1_000_000
"""A text longer than this is told of: most of it is cut off, or it is a file read wrongly."""


def check_text(rows: Dataset, split: str, column: str) -> None:
    """Refuse a row without a text; tell how many are blank, hold NUL characters, or are a megabyte and more."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = rows.select_columns(column).with_format("arrow")[:][column]
    missing = _rows_where(pc.is_null(texts))
    if len(missing):
        message = f"there is no text, as in {len(missing)} of {len(rows)} rows"
        raise DataError(message, split=split, row=int(missing[0]), column=column)
    if not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        raise DataError(f"{texts[0].as_py()!r} is not a text", split=split, row=0, column=column)
    odd = {
        "are blank": pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0),
        "hold NUL characters": pc.match_substring(texts, "\0"),
        "are a megabyte or longer": pc.greater_equal(pc.binary_length(texts), LONG_BYTES),
    }
    for what, mask in odd.items():
        found = _rows_where(mask)
        if len(found):
            told = f"{len(found)} of {len(rows)} texts {what}, the first in row {found[0]}"
            warnings.warn(f"split {split!r}, column {column!r}: {told}", stacklevel=2)


def _rows_where(mask: pa.ChunkedArray) -> np.ndarray:
    return np.flatnonzero(mask.to_numpy())
