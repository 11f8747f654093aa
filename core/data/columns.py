"""Rename columns as the spec says, and refuse data that lacks a column."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from taskrecipe.errors import DataError
from taskrecipe.system.suggestions import closest, did_you_mean

if TYPE_CHECKING:
    from taskrecipe.recipe import Column


def rename_columns(rows: Any, columns: Mapping[str, str], split: str) -> Any:
    """Rename columns from their names to ours. Another column that has one of our names already is dropped."""
    for ours, theirs in columns.items():
        if theirs not in rows.column_names:
            hint = did_you_mean(theirs, rows.column_names)
            message = f"[data.columns] {ours} = {theirs!r}, but {_list_columns(rows.column_names)}{hint}"
            raise DataError(message, split=split, column=theirs)
    mapping = {theirs: ours for ours, theirs in columns.items() if ours != theirs}
    replaced = [ours for ours in mapping.values() if ours in rows.column_names and ours not in mapping]
    return rows.remove_columns(replaced).rename_columns(mapping) if mapping else rows


def require_columns(names: Collection[str], columns: Mapping[str, Column], split: str) -> None:
    """Refuse a split that lacks a required column."""
    for ours, column in columns.items():
        if column.required and ours not in names:
            fix = f'[data.columns] {ours} = "{closest(ours, names) or "…"}"'
            missing = f"the recipe reads {ours!r} ({column.description}), but {_list_columns(names)}"
            message = f"{missing}; if it has another name: {fix}"
            raise DataError(message, split=split, column=ours)


def _list_columns(names: Collection[str]) -> str:
    return f"the data has {', '.join(map(repr, names))}"
