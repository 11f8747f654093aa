"""Paths of keys in a spec: look up values, and name keys in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from taskrecipe.spec.diagnostics import make_printable

KeyPath = tuple[str | int, ...]
"""The keys and list indices that lead to a value."""

LONGEST_NAME = 64


def has_value(values: Any, path: KeyPath) -> bool:
    """Whether there is a value at `path`."""
    for part in path:
        keys = range(len(values)) if isinstance(values, list) else values
        if not isinstance(keys, (dict, range)) or part not in keys:
            return False
        values = values[part]
    return True


def value_at(values: Any, path: KeyPath) -> Any:
    """Return the value at `path`, which must exist."""
    for part in path:
        values = values[part]
    return values


def replace_value(values: Any, path: KeyPath, new: Any) -> Any:
    """Return a copy of `values` with the value `new` at `path`."""
    if not path:
        return new
    copy = values.copy()
    copy[path[0]] = replace_value(values[path[0]] if has_value(values, path[:1]) else {}, path[1:], new)
    return copy


def remove_values(values: dict[str, Any], paths: Iterable[KeyPath]) -> dict[str, Any]:
    """Return a copy of `values` without those at `paths`. A list that contains one of them is removed as a whole."""
    kept = {}
    for key, value in values.items():
        inner = [path[1:] for path in paths if path[:1] == (key,)]
        if not inner:
            kept[key] = value
        elif () not in inner and isinstance(value, dict):
            kept[key] = remove_values(value, inner)
    return kept


def paths_overlap(one: KeyPath, other: KeyPath) -> bool:
    """Whether one path is the beginning of the other, or they are equal."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def name_key(path: KeyPath) -> str:
    """Return a key as messages name it: `[train].epochs`, or `callbacks[0].name` within a list."""
    if len(path) < 2 or any(isinstance(part, int) for part in path):
        return dotted_key(path)
    return f"[{dotted_key(path[:-1])}].{make_printable(str(path[-1]), LONGEST_NAME)}"


def dotted_key(path: KeyPath) -> str:
    """Return a path as one dotted key."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{make_printable(part, LONGEST_NAME)}" for part in path)
    return "".join(parts).removeprefix(".")


def flatten_tables(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by dotted key. A list is one value."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat |= flatten_tables(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def label_by_name(names: Sequence[str]) -> list[str]:
    """Return a label for each name: the name itself, and `name-2` where it comes a second time."""
    seen: Counter[str] = Counter()
    labels = []
    for name in names:
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return labels


def is_within(key: str, table: str) -> bool:
    """Whether a dotted key is that table or key, or lies inside it."""
    return key == table or key.startswith(f"{table}.")
