"""A JSON file that a spec names instead of writing a table: read by value, with the place of every key.

The same limits hold as for specs. Of a file that has none of the table's keys nothing is quoted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any

from typing_extensions import override

from taskrecipe.errors import SpecError
from taskrecipe.spec.diagnostics import show_value
from taskrecipe.spec.key_path import KeyPath, replace_value
from taskrecipe.spec.positions import Positions
from taskrecipe.spec.sources import DEEPEST, Source, read_text

SUFFIX = ".json"
"""Another file is not read: messages quote lines, and logs of CI are public."""


class JsonTable(Source):
    """A JSON file that holds the table at a path of a spec."""

    def __init__(self, name: str, text: str, at: KeyPath, table: dict[str, Any]) -> None:
        super().__init__(name, text, replace_value({}, at, table), Path(name).parent, "parent")
        self.at = at

    @cached_property
    @override
    def positions(self) -> Positions:
        found = Positions(self.text)
        _Walk(found).value(self.at)
        return found


def read_json_table(owner: Source, at: KeyPath, name: str, known: Collection[str]) -> JsonTable:
    """Read the file that `owner` names at a path. Raises `SpecError` if it can't be read, or is not such a table."""
    path = owner.folder / Path(name).expanduser()
    try:
        text = read_text(path, SUFFIX)
        table = _parse(text)
    except SpecError as error:
        raise _refuse(owner, at, f"{show_value(name)} {error.problems[0].message}") from None
    except (ValueError, RecursionError) as error:
        place = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _refuse(owner, at, f"{show_value(name)} is not JSON: there is a syntax error{place}") from None
    if not isinstance(table, dict) or not any(key in known for key in table):
        raise _refuse(owner, at, f"{show_value(name)} has none of the keys of [{'.'.join(map(str, at))}]")
    shown = os.path.normpath(Path(owner.name).parent / name)  # relative to where the command was called, as specs are
    return JsonTable(shown, text, at, table)


def _refuse(owner: Source, at: KeyPath, message: str) -> SpecError:
    return SpecError([owner.problem(owner.positions.of_value(at), "unreadable", message)])


def _parse(text: str) -> Any:
    if _depth(text) > DEEPEST:
        raise RecursionError
    return json.loads(text, parse_float=_parse_number, parse_constant=_refuse_constant)


def _depth(text: str) -> int:
    deepest = depth = 0
    for mark in re.findall(r"[][{}]", text):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _parse_number(text: str) -> int | float:
    """Return an integer for 5e8: JSON has only one kind of number, and sizes are often written like that."""
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _refuse_constant(text: str) -> None:
    raise ValueError(text)


class _Walk:
    """Finds the place of each key and value in a text that is JSON."""

    TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{},:]|[^][{},:\s]+')

    def __init__(self, found: Positions) -> None:
        self.found, self.tokens = found, list(self.TOKEN.finditer(found.text))
        self.next = 0

    def value(self, path: KeyPath) -> None:
        token = self._take()
        self.found.values[path] = token.span()
        if token[0] == b"{":
            self._members(path)
        elif token[0] == b"[":
            self._elements(path)

    def _members(self, path: KeyPath) -> None:
        while (token := self._take())[0] != b"}":
            if token[0] == b",":
                continue
            key = (*path, json.loads(token[0]))
            self.found.keys[key] = token.span()
            self._take()  # the colon
            self.value(key)

    def _elements(self, path: KeyPath) -> None:
        number = 0
        while self.tokens[self.next][0] != b"]":
            if self.tokens[self.next][0] == b",":
                self.next += 1
                continue
            self.value((*path, number))
            number += 1
        self.next += 1

    def _take(self) -> re.Match[bytes]:
        self.next += 1
        return self.tokens[self.next - 1]
