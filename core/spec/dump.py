"""Write a complete spec, defaults included, as TOML with the origin of each value in a comment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.items import Item, Table

from taskrecipe.spec.diagnostics import make_printable
from taskrecipe.spec.key_path import KeyPath
from taskrecipe.spec.layers import Origin
from taskrecipe.spec.spec import Spec

OriginOf = Callable[[KeyPath], Origin | str]


def to_toml(values: dict[str, Any], origin: OriginOf) -> str:
    """Write all values of a spec as a file that needs no parent, `--set` or default."""
    document = tomlkit.document()
    _fill(document, values, (), origin)
    return tomlkit.dumps(document)


def dump_values(spec: Spec) -> dict[str, Any]:
    """Return every value of a spec that is given or has a default, as it is written."""
    return {"spec_version": spec.spec_version, **spec.model_dump(mode="json", by_alias=True, exclude_none=True)}


def origins_in(text: str, origin: OriginOf) -> OriginOf:
    """Return origins that prefer the comments of `text`, a file of `to_toml` that the spec was read from."""
    lines = text.split("\n")  # `splitlines` would split at further characters

    def read_origin(path: KeyPath) -> Origin | str:
        found = origin(path)
        if isinstance(found, str) or found.kind != "file" or not found.line:
            return found
        return lines[found.line - 1].rpartition(" # ")[2]

    return read_origin


def _fill(table: Container | Table, values: dict[str, Any], path: KeyPath, origin: OriginOf) -> None:
    for key, value in values.items():
        here = (*path, key)
        if not _has_header(value):
            table.add(key, _with_comment(value, here, origin))
        elif isinstance(value, dict):
            table.add(key, _table(value, here, origin))
        else:
            tables = tomlkit.aot()
            for index, element in enumerate(value):
                tables.append(_table(element, (*here, index), origin))
            table.add(key, tables)


def _has_header(value: Any) -> bool:
    """Whether a value is written with a [header] or [[headers]]."""
    elements = value if isinstance(value, list) else [value]
    return bool(value) and all(isinstance(element, dict) for element in elements)


def _table(values: dict[str, Any], path: KeyPath, origin: OriginOf) -> Table:
    table = tomlkit.table()
    _fill(table, values, path, origin)
    return table


def _with_comment(value: Any, path: KeyPath, origin: OriginOf) -> Item:
    item = tomlkit.inline_table() if value == {} else tomlkit.item(value)
    return item.comment(make_printable(str(origin(path))))
