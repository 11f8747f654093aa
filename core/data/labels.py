"""Labels of classes and numbers to predict: found, checked row by row without a Python loop, and numbered.

Every label is compared by its name, which for a number is its digits, so that splits may store them differently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.core.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

    from taskrecipe.core.recipe import Splits


def class_names(splits: Splits, column: str) -> list[str]:
    """The names of the classes, in a fixed order: the data's own, or what the training rows hold, sorted.

    Every row of every split must have one of them, and the training rows more than one.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    labels = {split: _labels(rows, split, column) for split, rows in splits.items()}
    present = pc.unique(labels["train"]).to_pylist()
    names = getattr(splits["train"].features[column], "names", None) or _sorted(present)
    if len(names) < 2 or (len(present) < 2 and len(labels["train"]) > 1):
        raise DataError(
            f"there is only one class, {present[0]!r}, so nothing to tell apart", split="train", column=column
        )
    for split, values in labels.items():
        unknown = _first(pc.invert(pc.is_in(values, value_set=pa.array(names, pa.string()))))
        if unknown is not None:
            message = f"{values[unknown].as_py()!r} is not among the classes of the training rows: {_listed(names)}"
            raise DataError(message, split=split, row=unknown, column=column)
    return list(names)


def label_ids(rows: Dataset, column: str, names: list[str]) -> np.ndarray:
    """The number of each row's class: where its name is in `names`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.index_in(_labels(rows, "", column), value_set=pa.array(names, pa.string()))
    return np.asarray(numbers.combine_chunks().cast(pa.int64()))


def align_labels(names: list[str], config: Any) -> list[str]:
    """Our names in the order that the model was trained with, if it has the same ones; else in ours."""
    theirs = [str(name).casefold() for _, name in sorted((config.id2label or {}).items())]
    ours = {name.casefold(): name for name in names}
    return [ours[name] for name in theirs] if sorted(theirs) == sorted(ours) else names


def check_numbers(rows: Dataset, split: str, column: str) -> None:
    """Refuse a column of targets in which a row is not a finite number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = _column(rows, column)
    _refuse_missing(values, split, column)
    if not (pa.types.is_floating(values.type) or pa.types.is_integer(values.type)):
        raise DataError(f"{values[0].as_py()!r} is not a number", split=split, row=0, column=column)
    bad = _first(pc.invert(pc.is_finite(values)))
    if bad is not None:
        raise DataError(f"{values[bad].as_py()} is not finite", split=split, row=bad, column=column)


def _labels(rows: Dataset, split: str, column: str) -> pa.ChunkedArray:
    """Each row's label by name."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values, names = _column(rows, column), getattr(rows.features[column], "names", None)
    _refuse_missing(values, split, column)
    if names:
        outside = _first(pc.or_(pc.less(values, 0), pc.greater_equal(values, len(names))))
        if outside is not None:
            hidden = "; -1 stands for a label that is kept secret" if values[outside].as_py() == -1 else ""
            message = f"{values[outside].as_py()} is not the number of a class, 0 to {len(names) - 1}{hidden}"
            raise DataError(message, split=split, row=outside, column=column)
        return pc.take(pa.array(names, pa.string()), values)
    if pa.types.is_floating(values.type):
        row = _first(pc.not_equal(pc.floor(values), values)) or 0
        message = f"{values[row].as_py()} is a float; a class is a whole number or a text"
        raise DataError(message, split=split, row=row, column=column)
    simple = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_string, pa.types.is_large_string)
    if not any(is_kind(values.type) for is_kind in simple) or not hasattr(rows.features[column], "dtype"):
        message = f"{values[0].as_py()!r} is not a class; all rows must have a text, or all a whole number"
        raise DataError(message, split=split, row=0, column=column)
    return values.cast(pa.string())


def _column(rows: Dataset, column: str) -> pa.ChunkedArray:
    return rows.select_columns(column).with_format("arrow")[:][column]


def _refuse_missing(values: pa.ChunkedArray, split: str, column: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = _first(pc.is_null(values, nan_is_null=pa.types.is_floating(values.type)))
    if missing is not None:
        raise DataError("there is no value", split=split, row=missing, column=column)


def _first(mask: pa.ChunkedArray) -> int | None:
    """The first row for which `mask` holds."""
    import pyarrow.compute as pc

    row: int = pc.index(mask, True).as_py()
    return row if row >= 0 else None


def _sorted(names: list[str]) -> list[str]:
    """Numbers by value, anything else by letters."""
    try:
        return sorted(names, key=int)
    except ValueError:
        return sorted(names)


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (f" … ({len(names)} in all)" if len(names) > 10 else "")
