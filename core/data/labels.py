"""Targets that are classes or numbers: find the classes, check every row, and number them, without a Python loop.

Classes are compared by name; the name of a number is its digits, unless a recipe knows what numbers stand for and
passes these names as `numbered`. So splits may store classes in different types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset


def learn_classes(rows: Dataset, column: str, numbered: Sequence[str] = ()) -> list[str]:
    """Return the names of the classes in a fixed order: those the data declares, or those in the rows, sorted.

    Numbers are `numbered` unless there are others. The rows must have more than one class.
    """
    import pyarrow.compute as pc

    if numbered and not _are_numbers_of(rows, column, numbered):
        numbered = ()
    present = pc.unique(_label_names(rows, "train", column, numbered)).to_pylist()
    names = getattr(rows.features[column], "names", None) or numbered or _sort_names(present)
    if len(names) < 2 or (len(present) < 2 and len(rows) > 1):
        raise DataError(
            f"there is only one class, {present[0]!r}, so there is nothing to learn", split="train", column=column
        )
    return list(names)


def check_classes(rows: Dataset, split: str, column: str, names: list[str], numbered: Sequence[str] = ()) -> None:
    """Refuse a row whose class is not in `names`. A split without the column passes: it has no targets."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in rows.column_names:
        return
    values = _label_names(rows, split, column, numbered)
    unknown = _find_first(pc.invert(pc.is_in(values, value_set=pa.array(names, pa.string()))))
    if unknown is not None:
        message = f"{values[unknown].as_py()!r} is not among the classes of the training rows: {_list_names(names)}"
        raise DataError(message, split=split, row=unknown, column=column)


def count_labels(rows: Dataset, names: list[str]) -> dict[str, int]:
    """Count how often the number of each name is in a column `labels` of numbers, or of lists of numbers.

    Other numbers, such as that of what is not predicted, don't count. Without names or such a column, it is empty.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not names or "labels" not in rows.column_names:
        return {}
    values = _read_column(rows, "labels")
    while pa.types.is_nested(values.type):
        values = pc.list_flatten(values)
    if not pa.types.is_integer(values.type):
        return {}
    numbers = values.drop_null().to_numpy()
    counts = np.bincount(numbers[(numbers >= 0) & (numbers < len(names))], minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


def add_labels(made: Dataset, rows: Dataset, column: str, names: list[str], numbered: Sequence[str] = ()) -> Dataset:
    """Add a column `labels` with the number of each row's class; nothing if the rows have no such column."""
    if column not in rows.column_names:
        return made
    return made.add_column("labels", label_ids(rows, column, names, numbered))


def label_ids(rows: Dataset, column: str, names: list[str], numbered: Sequence[str] = ()) -> np.ndarray:
    """Return the number of each row's class, which is its place in `names`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.index_in(_label_names(rows, "", column, numbered), value_set=pa.array(names, pa.string()))
    return np.asarray(numbers.combine_chunks().cast(pa.int64()))


def align_labels(names: list[str], config: Any) -> list[str]:
    """Return our class names in the model's order if it has the same names; else in our order."""
    theirs = [str(name).casefold() for _, name in sorted((config.id2label or {}).items())]
    ours = {name.casefold(): name for name in names}
    return [ours[name] for name in theirs] if sorted(theirs) == sorted(ours) else names


def check_numbers(rows: Dataset, split: str, column: str) -> None:
    """Refuse a column of targets in which a row is not a finite number. A split without the column passes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column not in rows.column_names:
        return
    values = _read_column(rows, column)
    _refuse_missing(values, split, column)
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise DataError(f"{values[0].as_py()!r} is not a number", split=split, row=0, column=column)
    bad = _find_first(pc.invert(pc.is_finite(values)))
    if bad is not None:
        raise DataError(f"{values[bad].as_py()} is not finite", split=split, row=bad, column=column)


def _are_numbers_of(rows: Dataset, column: str, names: Sequence[str]) -> bool:
    """Whether a column holds whole numbers of these classes only. -1 counts too: it stands for an unknown class."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _read_column(rows, column)
    if not pa.types.is_integer(values.type):
        return False
    found = pc.min_max(values).as_py()
    return found["min"] is not None and found["min"] >= -1 and found["max"] < len(names)


def _label_names(rows: Dataset, split: str, column: str, numbered: Sequence[str] = ()) -> pa.ChunkedArray:
    """Return the name of each row's class."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values, names = _read_column(rows, column), getattr(rows.features[column], "names", None)
    if names is None and pa.types.is_integer(values.type):
        names = numbered
    _refuse_missing(values, split, column)
    if names:
        outside = _find_first(pc.or_(pc.less(values, 0), pc.greater_equal(values, len(names))))
        if outside is not None:
            hidden = "; -1 usually means that the label is not published" if values[outside].as_py() == -1 else ""
            message = f"{values[outside].as_py()} is not the number of a class, 0 to {len(names) - 1}{hidden}"
            raise DataError(message, split=split, row=outside, column=column)
        return pc.take(pa.array(names, pa.string()), values)
    if pa.types.is_floating(values.type):
        row = _find_first(pc.not_equal(pc.floor(values), values)) or 0
        message = f"{values[row].as_py()} is a float; a class is a whole number or a text"
        raise DataError(message, split=split, row=row, column=column)
    simple = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    if not any(is_kind(values.type) for is_kind in simple) or not hasattr(rows.features[column], "dtype"):
        message = f"{values[0].as_py()!r} is not a class; all rows must have a text, or all a whole number"
        raise DataError(message, split=split, row=0, column=column)
    return values.cast(pa.string())


def _read_column(rows: Dataset, column: str) -> pa.ChunkedArray:
    return rows.select_columns(column).with_format("arrow")[:][column]


def _refuse_missing(values: pa.ChunkedArray, split: str, column: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = _find_first(pc.is_null(values, nan_is_null=pa.types.is_floating(values.type)))
    if missing is not None:
        raise DataError("there is no value", split=split, row=missing, column=column)


def _find_first(mask: pa.ChunkedArray) -> int | None:
    """Return the first row where `mask` is true."""
    import pyarrow.compute as pc

    row: int = pc.index(mask, True).as_py()
    return row if row >= 0 else None


def _sort_names(names: list[str]) -> list[str]:
    """Sort numbers by value, anything else as text."""
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


def _list_names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (f" … ({len(names)} in all)" if len(names) > 10 else "")
