"""Streamed rows, in blocks, so that a resumed run can start reading at any block."""

from __future__ import annotations

import secrets
from collections.abc import Generator
from itertools import count
from typing import TYPE_CHECKING

from taskrecipe.data.read_errors import abandoned_files, explain_read_errors

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

HEAD_ROWS = 1000
"""Rows that are checked before training; they also decide the types of the columns."""


def read_blocks(rows: IterableDataset, rows_per_block: int, start_block: int = 0) -> Generator[Dataset, None, None]:
    """Yield the stream in blocks of `rows_per_block` rows; the last one may be shorter.

    Block k always has the same rows, wherever reading starts. Blocks before `start_block` are skipped.
    """
    from datasets import Dataset, DatasetInfo

    tables = rows.skip(start_block * rows_per_block).with_format("arrow").iter(rows_per_block)
    try:
        for number in count(start_block):
            with explain_read_errors(f"rows {number * rows_per_block} to {(number + 1) * rows_per_block - 1}", "train"):
                table = next(tables, None)
                if table is None:
                    return
                table.validate(full=True)  # json and parquet may hold text that is not UTF-8
            # Without a fingerprint, datasets would hash the whole table.
            yield Dataset(table, info=DatasetInfo(features=rows.features), fingerprint=secrets.token_hex(8))
    except GeneratorExit:
        with abandoned_files():
            tables.close()
        raise


def fix_types(rows: IterableDataset) -> tuple[IterableDataset, Dataset | None]:
    """Fix the types of the columns, so that all blocks have the same. Return the stream, and its first rows or None."""
    head = next(read_blocks(rows, HEAD_ROWS), None)
    return (rows if head is None or rows.features is not None else rows.cast(head.features)), head


def store_stream(rows: IterableDataset) -> Dataset:
    """Read a whole stream into memory."""
    from datasets import Dataset, concatenate_datasets

    rows, head = fix_types(rows)
    return concatenate_datasets(list(read_blocks(rows, HEAD_ROWS))) if head is not None else Dataset.from_dict({})
