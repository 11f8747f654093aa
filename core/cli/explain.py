"""`recipe explain`: a key's value, origin, meaning and allowed values; or all keys of a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from taskrecipe.cli.help.fields import Key, as_plain, format_toml, list_keys
from taskrecipe.cli.help.layout import print_entries, print_heading, print_paragraph, print_table
from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.key_path import KeyPath, dotted_key
from taskrecipe.spec.resolve import Resolved, resolve
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.table import Table
from taskrecipe.spec.tables import Tables, keys_of
from taskrecipe.system.secrets import to_json
from taskrecipe.system.suggestions import closest


@dataclass(frozen=True)
class Place:
    """The value at a dotted key, and the innermost table around it whose keys are known."""

    path: KeyPath
    value: Any
    table: KeyPath
    model: type[Table]

    @property
    def key(self) -> Key | None:
        """Return the description of the key; inside a list or a free table, of the whole list or table."""
        known = _known_keys(self.model)
        inside = self.path[len(self.table) :]
        return next((known[name] for n in range(len(inside), 0, -1) if (name := dotted_key(inside[:n])) in known), None)

    def names(self) -> list[str]:
        """Return the keys or list indices that can follow."""
        if isinstance(self.value, list):
            return [str(index) for index in range(len(self.value))]
        if isinstance(self.value, Table | dict):
            return list(keys_of(type(self.value)) if isinstance(self.value, Table) else self.value)
        above = dotted_key(self.path[len(self.table) :]) + "."
        return [name.removeprefix(above) for name in _known_keys(self.model) if name.startswith(above)]

    def inner(self, part: str) -> Place:
        """Return the place of `part`, one of `names()`."""
        step: str | int = int(part) if isinstance(self.value, list) else part
        table = (self.path, type(self.value)) if isinstance(self.value, Table) else (self.table, self.model)
        return Place((*self.path, step), _item(self.value, step), *table)

    def leaves(self) -> Iterator[Place]:
        """Yield the place of every single value in it, those that are not given too."""
        is_list = isinstance(self.value, list) and bool(self.value) and isinstance(self.value[0], Table)
        if is_list or isinstance(self.value, Table) or (isinstance(self.value, dict) and self.value):
            for name in self.names():
                yield from self.inner(name).leaves()
        else:
            yield self


@cache
def _known_keys(model: type[Table]) -> dict[str, Key]:
    return {key.name: key for key in list_keys(model)}


def explain(spec: Path, name: str | None, sets: Sequence[str], *, sample: bool, as_json: bool) -> None:
    """Print everything about a key of a spec, the values of all keys of a table, or all keys of the spec."""
    resolved = resolve(spec, sets, sample)
    place = _find(resolved, name or "")
    if as_json:
        typer.echo(to_json([_describe(resolved, leaf) for leaf in place.leaves()], indent=2))
    elif not place.path:
        _print_spec(resolved, place)
    elif isinstance(place.value, Table | dict):
        _print_table(resolved, place)
    else:
        _print_value(resolved, place)


def _describe(resolved: Resolved, place: Place) -> dict[str, Any]:
    """Return what is known of a key, as JSON values."""
    key = place.key
    return {
        "key": dotted_key(place.path),
        "value": as_plain(place.value),
        "origin": str(resolved.origins.of(place.path)),
        "meaning": key.description if key else None,
        "allowed": key.allowed if key else None,
        "default": key.schema.get("default") if key else None,
    }


def _print_spec(resolved: Resolved, place: Place) -> None:
    """Print every key with its value, where that came from, and what it means, table by table."""
    tables: dict[KeyPath, list[Place]] = {}
    for leaf in place.leaves():
        tables.setdefault(leaf.table, []).append(leaf)
    for table, leaves in tables.items():
        if table:
            typer.echo()
        print_heading(f"[{dotted_key(table)}]" if table else "the spec")
        print_entries([(dotted_key(leaf.path), _describe_leaf(resolved, leaf)) for leaf in leaves])


def _describe_leaf(resolved: Resolved, leaf: Place) -> list[str]:
    given = "not given" if leaf.value is None else f"{format_toml(leaf.value)}  ({resolved.origins.of(leaf.path)})"
    return [given, leaf.key.description if leaf.key else ""]


def _print_value(resolved: Resolved, place: Place) -> None:
    given = "is not given" if place.value is None else f"= {format_toml(place.value)}"
    print_heading(f"{dotted_key(place.path)} {given}")
    facts = {"from": str(resolved.origins.of(place.path))}
    if key := place.key:
        none = "none: the key is required" if key.required else "none"
        facts |= {"meaning": key.description, "allowed": key.allowed, "default": key.default or none}
    print_entries([(label, [text]) for label, text in facts.items()])


def _print_table(resolved: Resolved, place: Place) -> None:
    print_heading(_title(place))
    if place.key and place.key.description:
        print_paragraph(place.key.description, 2)
    rows = [
        (dotted_key(path), f"= {format_toml(value)}", str(resolved.origins.of(path)))
        for path, value in _leaves(as_plain(place.value), place.path)
    ]
    print_table(rows, indent=2)


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not isinstance(value, dict) or not value:
        yield path, value
        return
    for name, inner in value.items():
        yield from _leaves(inner, (*path, name))


def _item(value: Any, step: str | int) -> Any:
    if not isinstance(value, Table):
        return None if value is None else value[step]
    model = type(value)
    attribute = dict(zip(keys_of(model), model.model_fields, strict=True))[str(step)]
    return getattr(value, attribute)


def _find(resolved: Resolved, name: str) -> Place:
    place = Place((), resolved.spec, (), Spec)
    for part in filter(None, re.split(r"[.\[\]]", name)):
        if part not in (known := place.names()):
            raise UsageError(f"{_title(place)} has no key {part!r}; {_hint(resolved, place, part, known)}")
        place = place.inner(part)
    return place


def _hint(resolved: Resolved, place: Place, part: str, known: list[str]) -> str:
    if close := closest(part, known):
        return f"did you mean {dotted_key((*place.path, close))!r}?"
    homes = (
        [] if place.path else [dotted_key((*home, part)) for home in Tables(resolved.values, installed()).homes(part)]
    )
    if 0 < len(homes) <= 3:
        return f"did you mean {' or '.join(map(repr, homes))}?"
    return f"it has {', '.join(known)}" if known else "it has none in this spec"


def _title(place: Place) -> str:
    return f"[{dotted_key(place.path)}]" if place.path else "the spec"
