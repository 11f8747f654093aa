"""Checks of text columns: rows without text are refused, and unusual texts are counted in a warning."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.data.row_hash import iterate_blocks
from taskrecipe.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

LONG_BYTES = 1_000_000
"""Longer texts cause a warning: most of such a text is cut off, or a file was read in a wrong way."""


def check_text(rows: Dataset, split: str, column: str) -> None:
    """Refuse rows without text. Warn of texts that are blank, hold NUL characters, or have a megabyte or more."""
    import pyarrow as pa

    odd = _find_odd(rows, column)
    missing = odd.pop("are missing")
    if len(missing):
        message = f"there is no text, as in {len(missing)} of {len(rows)} rows"
        raise DataError(message, split=split, row=int(missing[0]), column=column)
    kind = rows.data.schema.field(column).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f"{rows[0][column]!r} is not a text", split=split, row=0, column=column)
    for what, found in odd.items():
        if len(found):
            count = f"{len(found)} of {len(rows)} texts {what}, the first in row {found[0]}"
            warnings.warn(f"split {split!r}, column {column!r}: {count}", stacklevel=2)


def _find_odd(rows: Dataset, column: str) -> dict[str, np.ndarray]:
    """Return the rows whose text is unusual, by what is unusual. A block at a time: the texts may not fit in memory."""
    found: dict[str, list[np.ndarray]] = {}
    start = 0
    for table in iterate_blocks(rows.select_columns(column)):
        for what, mask in _mark_odd(table[column]).items():
            found.setdefault(what, []).append(np.flatnonzero(mask.to_numpy()) + start)
        start += len(table)
    return {"are missing": np.empty(0, int), **{what: np.concatenate(parts) for what, parts in found.items()}}


def _mark_odd(texts: pa.ChunkedArray) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    marks = {"are missing": pc.is_null(texts)}
    if texts.null_count or not (pa.types.is_string(texts.type) or pa.types.is_large_string(texts.type)):
        return marks
    return {
        **marks,
        "are blank": pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0),
        "hold NUL characters": pc.match_substring(texts, "\0"),
        "are a megabyte or longer": pc.greater_equal(pc.binary_length(texts), LONG_BYTES),
    }
