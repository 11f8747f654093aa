"""Columns under the names a recipe knows: renamed as the spec says, and missed before anything is trained."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from taskrecipe.core.errors import DataError

if TYPE_CHECKING:
    from taskrecipe.core.recipe import Column


def renamed(rows: Any, columns: Mapping[str, str], split: str) -> Any:
    """The rows with `columns`, ours = theirs, under our names; a column that had one of these gives way."""
    for ours, theirs in columns.items():
        if theirs not in rows.column_names:
            message = (
                f"[data.columns] {ours} = {theirs!r}, but {_has(rows.column_names)}{_hint(theirs, rows.column_names)}"
            )
            raise DataError(message, split=split, column=theirs)
    mapping = {theirs: ours for ours, theirs in columns.items() if ours != theirs}
    in_the_way = [ours for ours in mapping.values() if ours in rows.column_names and ours not in mapping]
    return rows.remove_columns(in_the_way).rename_columns(mapping) if mapping else rows


def require(names: Collection[str], columns: Mapping[str, Column], split: str) -> None:
    """Refuse a split without a column that the recipe must have."""
    for ours, column in columns.items():
        if column.required and ours not in names:
            close = get_close_matches(ours, names, 1, cutoff=0.5)
            fix = f'[data.columns] {ours} = "{close[0] if close else "…"}"'
            message = (
                f"the recipe reads {ours!r} ({column.description}), but {_has(names)}; if it has another name: {fix}"
            )
            raise DataError(message, split=split, column=ours)


def _has(names: Collection[str]) -> str:
    return f"the data has {', '.join(map(repr, names))}"


def _hint(name: str, names: Collection[str]) -> str:
    close = get_close_matches(name, names, 1)
    return f"; did you mean {close[0]!r}?" if close else ""
