"""Rows that are read as they come, cut into blocks so that a run can go on from any of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING

from taskrecipe.core.data.causes import abandoned_files, explained

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

HEAD_ROWS = 1000
"""Rows that are looked at before training, and that the types of columns are taken from."""


def blocks(rows: IterableDataset, rows_per_block: int, start_block: int = 0) -> Iterator[Dataset]:
    """The stream in blocks of `rows_per_block` rows, the last one shorter.

    Block k is always the same rows, wherever reading began; those before `start_block` are only skipped.
    """
    from datasets import Dataset, DatasetInfo

    tables = rows.skip(start_block * rows_per_block).with_format("arrow").iter(rows_per_block)
    try:
        for number in count(start_block):
            with explained(f"rows {number * rows_per_block} to {(number + 1) * rows_per_block - 1}", "train"):
                table = next(tables, None)
                if table is None:
                    return
                table.validate(full=True)  # json and parquet may hold text that is not UTF-8
            yield Dataset(table, info=DatasetInfo(features=rows.features))
    except GeneratorExit:
        with abandoned_files():
            tables.close()
        raise


def typed(rows: IterableDataset) -> tuple[IterableDataset, Dataset | None]:
    """The stream with its columns' types fixed, so that no block has others, and its first rows, if it has any."""
    head = next(blocks(rows, HEAD_ROWS), None)
    return (rows if head is None or rows.features is not None else rows.cast(head.features)), head


def stored(rows: IterableDataset) -> Dataset:
    """All of a stream, in memory."""
    from datasets import Dataset, concatenate_datasets

    rows, head = typed(rows)
    return concatenate_datasets(list(blocks(rows, HEAD_ROWS))) if head is not None else Dataset.from_dict({})
