"""`recipe explain`: a key's value, where it came from, what it means and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskrecipe.core.cli.fields import Key, keys, plain, toml
from taskrecipe.core.cli.layout import entries, heading, paragraph, table
from taskrecipe.core.errors import UsageError
from taskrecipe.core.registry import installed
from taskrecipe.core.spec.findings import nearest
from taskrecipe.core.spec.keypath import KeyPath, dotted
from taskrecipe.core.spec.resolve import Resolved, resolve
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.spec.table import Table
from taskrecipe.core.spec.tables import Tables, keys_of


@dataclass(frozen=True)
class Place:
    """Where a dotted key leads: the value there, and the innermost table around it that says what keys it has."""

    path: KeyPath
    value: Any
    table: KeyPath
    model: type[Table]

    @property
    def key(self) -> Key | None:
        """What the table says of the key; of what is in a list or a free table, it says it of that as a whole."""
        known = {key.name: key for key in keys(self.model)}
        inside = self.path[len(self.table) :]
        return next((known[name] for n in range(len(inside), 0, -1) if (name := dotted(inside[:n])) in known), None)

    def names(self) -> list[str]:
        """What can follow here."""
        if isinstance(self.value, list):
            return [str(index) for index in range(len(self.value))]
        if isinstance(self.value, Table | dict):
            return list(keys_of(type(self.value)) if isinstance(self.value, Table) else self.value)
        above = dotted(self.path[len(self.table) :]) + "."
        return [key.name.removeprefix(above) for key in keys(self.model) if key.name.startswith(above)]

    def inner(self, part: str) -> Place:
        """Where `part` leads, which is one of `names()`."""
        step: str | int = int(part) if isinstance(self.value, list) else part
        table = (self.path, type(self.value)) if isinstance(self.value, Table) else (self.table, self.model)
        return Place((*self.path, step), _item(self.value, step), *table)


def explain(spec: Path, name: str, sets: Sequence[str], *, sample: bool) -> None:
    """Print all there is to know about a key of a spec, or the values of all keys of a table."""
    resolved = resolve(spec, sets, sample)
    place = _find(resolved, name)
    if isinstance(place.value, Table | dict):
        _print_table(resolved, place)
    else:
        _print_value(resolved, place)


def _print_value(resolved: Resolved, place: Place) -> None:
    given = "is not given" if place.value is None else f"= {toml(place.value)}"
    heading(f"{dotted(place.path)} {given}")
    facts = {"from": str(resolved.origins.of(place.path))}
    if key := place.key:
        none = "none: it must be given" if key.required else "none"
        facts |= {"meaning": key.description, "allowed": key.allowed, "default": key.default or none}
    entries([(label, [text]) for label, text in facts.items()])


def _print_table(resolved: Resolved, place: Place) -> None:
    heading(_title(place))
    if place.key and place.key.description:
        paragraph(place.key.description, 2)
    rows = [
        (dotted(path), f"= {toml(value)}", str(resolved.origins.of(path)))
        for path, value in _leaves(plain(place.value), place.path)
    ]
    table(rows, indent=2)


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
    if close := nearest(part, known):
        return f"did you mean {dotted((*place.path, close))!r}?"
    homes = [] if place.path else [dotted((*home, part)) for home in Tables(resolved.values, installed()).homes(part)]
    if 0 < len(homes) <= 3:
        return f"did you mean {' or '.join(map(repr, homes))}?"
    return f"it has {', '.join(known)}" if known else "it has none in this spec"


def _title(place: Place) -> str:
    return f"[{dotted(place.path)}]" if place.path else "the spec"
