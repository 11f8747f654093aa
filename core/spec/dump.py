"""Writing a whole spec, defaults too, as TOML that says where each value came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.items import Item, Table

from taskrecipe.core.spec.diagnostics import visible
from taskrecipe.core.spec.keypath import KeyPath
from taskrecipe.core.spec.layers import Origin
from taskrecipe.core.spec.spec import Spec

OriginOf = Callable[[KeyPath], Origin | str]


def to_toml(spec: Spec, origin: OriginOf) -> str:
    """The spec as a file that needs no parent, `--set` or default; `origins_in` reads its comments again."""
    values = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    document = tomlkit.document()
    _fill(document, {"spec_version": spec.spec_version, **values}, (), origin)
    return tomlkit.dumps(document)


def origins_in(text: str, origin: OriginOf) -> OriginOf:
    """The origins that a file of `to_toml` tells of, for values that by `origin` stand in it."""
    lines = text.split("\n")  # as places count them: a text may hold other characters that some call the end of a line

    def told(path: KeyPath) -> Origin | str:
        found = origin(path)
        if isinstance(found, str) or found.kind != "file" or not found.line:
            return found
        return lines[found.line - 1].rpartition(" # ")[2]

    return told


def _fill(table: Container | Table, values: dict[str, Any], path: KeyPath, origin: OriginOf) -> None:
    for key, value in values.items():
        here = (*path, key)
        if not _has_header(value):
            table.add(key, _commented(value, here, origin))
        elif isinstance(value, dict):
            table.add(key, _table(value, here, origin))
        else:
            tables = tomlkit.aot()
            for index, element in enumerate(value):
                tables.append(_table(element, (*here, index), origin))
            table.add(key, tables)


def _has_header(value: Any) -> bool:
    """Whether a value is written as a table, or several, of its own."""
    elements = value if isinstance(value, list) else [value]
    return bool(value) and all(isinstance(element, dict) for element in elements)


def _table(values: dict[str, Any], path: KeyPath, origin: OriginOf) -> Table:
    table = tomlkit.table()
    _fill(table, values, path, origin)
    return table


def _commented(value: Any, path: KeyPath, origin: OriginOf) -> Item:
    item = tomlkit.inline_table() if value == {} else tomlkit.item(value)
    return item.comment(visible(str(origin(path))))
