"""How long rows are, what a limit cuts off, and how much padding each order of rows needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from taskrecipe.training.order import Order, split_evenly

Numbers = NDArray[np.int64]
OrderKind = Literal["shuffled", "bucketed", "sequential"]
ORDERS: tuple[OrderKind, ...] = ("shuffled", "bucketed", "sequential")


@dataclass(frozen=True)
class Texts:
    """The texts of a column of tokens: for each row how many there are, the longest, and the tokens of all."""

    counts: Numbers
    longest: Numbers
    tokens: Numbers


@dataclass(frozen=True)
class Lengths:
    """Lengths of many rows."""

    p50: int
    p95: int
    max: int
    total: int

    @classmethod
    def of(cls, values: Any) -> Lengths:
        """Summarize the length of each row."""
        numbers = np.asarray(values)
        middle, high = np.quantile(numbers, [0.5, 0.95], method="higher")
        return cls(int(middle), int(high), int(numbers.max()), int(numbers.sum()))


@dataclass(frozen=True)
class Padding:
    """What one order of the rows costs: tokens of the rows, and tokens that are computed with padding."""

    tokens: int
    computed: int

    @property
    def share(self) -> float:
        """The share of padding in what is computed."""
        return 1 - self.tokens / self.computed if self.computed else 0.0


def measure_texts(rows: Dataset, ending: str = "input_ids") -> list[Texts]:
    """Measure every column of lists of tokens, or of lists of such lists, whose name ends like this."""
    names = [name for name in rows.column_names if name == ending or name.endswith(f".{ending}")]
    return [_measure_column(rows.select_columns(name).with_format("arrow")[:][name]) for name in names]


def _measure_column(column: Any) -> Texts:
    import pyarrow as pa
    import pyarrow.compute as pc

    outer = _list_lengths(column)
    if not pa.types.is_nested(column.type.value_type):
        given = pc.is_valid(column).to_numpy().astype(np.int64)  # a row of another task has no such text
        return Texts(given, outer, outer)
    inner = _list_lengths(pc.list_flatten(column))
    return Texts(outer, _reduce_groups(np.maximum, inner, outer), _reduce_groups(np.add, inner, outer))


def _list_lengths(column: Any) -> Numbers:
    import pyarrow.compute as pc

    return np.asarray(pc.fill_null(pc.list_value_length(column), 0).to_numpy(), dtype=np.int64)


def _reduce_groups(function: Any, values: Numbers, sizes: Numbers) -> Numbers:
    """Reduce consecutive groups of values; an empty group gives 0."""
    result = np.zeros(len(sizes), dtype=np.int64)
    filled = sizes > 0
    if filled.any():
        result[filled] = function.reduceat(values, (np.cumsum(sizes) - sizes)[filled])
    return result


def needed_lengths(rows: Dataset, ending: str) -> Numbers | None:
    """Return the limit at which nothing of each row would be cut off, from rows that nothing was cut off from."""
    columns = [texts.longest for texts in measure_texts(rows, ending)]
    return np.maximum.reduce(columns) if columns else None


def measure_padding(order: Order, parts: int, columns: Iterable[Texts], lengths: Any) -> Mapping[OrderKind, Padding]:
    """Compute the padding of the first epoch for every order of the rows, exactly as updates are split into parts."""
    texts = list(columns)
    return {kind: _pad_epoch(replace(order, kind=kind, lengths=lengths), parts, texts) for kind in ORDERS}


def _pad_epoch(order: Order, parts: int, columns: list[Texts]) -> Padding:
    pieces = [piece for update in order.epoch(0) for piece in split_evenly(update, parts) if len(piece)]
    rows = np.concatenate(pieces)
    sizes = np.array([len(piece) for piece in pieces])
    starts = np.cumsum(sizes) - sizes
    tokens = computed = 0
    for column in columns:
        widest = np.maximum.reduceat(column.longest[rows], starts)
        computed += int((widest * np.add.reduceat(column.counts[rows], starts)).sum())
        tokens += int(column.tokens[rows].sum())
    return Padding(tokens, computed)
