"""The types of columns that are read as text: found and changed a part at a time, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def infer_types(table: pa.Table) -> pa.Table:
    """Return the table with columns of whole numbers, numbers, or true and false, where all cells are such."""
    import pyarrow as pa

    schema = infer_schema(table)
    return pa.Table.from_batches(
        [batch for chunk in cast_chunks(table, schema) for batch in chunk.to_batches()], schema
    )


def infer_schema(table: pa.Table) -> pa.Schema:
    """Return the type of each column of texts: whole numbers, numbers, true and false, or text."""
    import pyarrow as pa

    return pa.schema([(name, _infer_type(table[name])) for name in table.column_names])


def _infer_type(texts: pa.ChunkedArray) -> pa.DataType:
    """Return the first type that all texts can be read as."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if texts.null_count == len(texts):
        return texts.type
    for kind in (pa.int64(), pa.float64(), pa.bool_()):
        if not all(_can_be(chunk, kind) for chunk in texts.chunks):
            continue
        # Whole numbers that are too large for 64 bits would lose digits as floats.
        digits = (pc.match_substring_regex(pc.utf8_trim_whitespace(chunk), r"^[+-]?\d+$") for chunk in texts.chunks)
        too_large = kind == pa.float64() and all(pc.all(mask).as_py() is not False for mask in digits)
        return texts.type if too_large else kind
    return texts.type


def _can_be(texts: pa.Array, kind: pa.DataType) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        pc.utf8_trim_whitespace(texts).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def cast_chunks(table: pa.Table, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the records with the types of `schema`, many at a time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in table.to_batches():
        columns = [
            text if text.type == field.type else pc.utf8_trim_whitespace(text).cast(field.type)
            for text, field in zip(batch.columns, schema, strict=True)
        ]
        yield pa.table(columns, schema=schema)
