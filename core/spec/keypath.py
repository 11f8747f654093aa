"""Paths of keys that lead to the values of a spec: looking them up, and naming them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from taskrecipe.core.spec.diagnostics import visible

KeyPath = tuple[str | int, ...]
"""The keys and list indices that lead to a value."""

LONGEST_NAME = 64


def holds(values: Any, path: KeyPath) -> bool:
    """Whether there is a value at `path`."""
    for part in path:
        keys = range(len(values)) if isinstance(values, list) else values
        if not isinstance(keys, (dict, range)) or part not in keys:
            return False
        values = values[part]
    return True


def value_at(values: Any, path: KeyPath) -> Any:
    """The value at `path`, which must be there."""
    for part in path:
        values = values[part]
    return values


def replaced(values: Any, path: KeyPath, new: Any) -> Any:
    """A copy of `values` with another one at `path`."""
    if not path:
        return new
    copy = values.copy()
    copy[path[0]] = replaced(values[path[0]] if holds(values, path[:1]) else {}, path[1:], new)
    return copy


def without(values: dict[str, Any], paths: Iterable[KeyPath]) -> dict[str, Any]:
    """A copy of `values` that lacks those at `paths`; a list that would lose something is left out as a whole."""
    kept = {}
    for key, value in values.items():
        inner = [path[1:] for path in paths if path[:1] == (key,)]
        if not inner:
            kept[key] = value
        elif () not in inner and isinstance(value, dict):
            kept[key] = without(value, inner)
    return kept


def overlap(one: KeyPath, other: KeyPath) -> bool:
    """Whether one of two paths leads into the other's value, or both to the same."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def named(path: KeyPath) -> str:
    """A key as messages call it: `[train].epochs`, or `callbacks[0].name` within a list."""
    if len(path) < 2 or any(isinstance(part, int) for part in path):
        return dotted(path)
    return f"[{dotted(path[:-1])}].{visible(str(path[-1]), LONGEST_NAME)}"


def dotted(path: KeyPath) -> str:
    """A path as one dotted key."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{visible(part, LONGEST_NAME)}" for part in path)
    return "".join(parts).removeprefix(".")
