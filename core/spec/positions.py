"""Where every key and value of a TOML text stands, by its syntax tree.

Only problems and `recipe explain` need places, so the parser is imported when the first one is asked for.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taskrecipe.core.spec.keypath import KeyPath

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Span:
    """A stretch of one line: both counts start at 1 and are in characters."""

    line: int
    column: int
    width: int = 1


TOP = Span(1, 1)


@dataclass
class Positions:
    """The place of every key and of every value; that of a table is its header."""

    keys: dict[KeyPath, Span] = field(default_factory=dict)
    values: dict[KeyPath, Span] = field(default_factory=dict)
    twice: list[tuple[KeyPath, Span, Span]] = field(default_factory=list)
    """Keys and tables given a second time: what, where first, where again."""

    def of_value(self, path: KeyPath) -> Span:
        """The place of a value, or of the innermost table around it that the text has."""
        return next((self.values[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.values), TOP)

    def of_key(self, path: KeyPath) -> Span:
        """The place of a key; an element of a list has only that of its value."""
        return self.keys.get(path) or self.of_value(path)


def locate(text: str) -> Positions:
    """Find the place of everything in `text`; of what is not TOML, as much as can be told."""
    import tree_sitter_toml
    from tree_sitter import Language, Parser

    tree = Parser(Language(tree_sitter_toml.language())).parse(text.encode())
    walk = _Walk(text)
    for node in tree.root_node.children:
        if node.type == "pair":
            walk.pair(node, ())
        elif node.type in ("table", "table_array_element"):
            walk.table(node)
    return walk.found


class _Walk:
    def __init__(self, text: str) -> None:
        self.found = Positions()
        self.lines = text.encode().split(b"\n")
        self.lengths: dict[KeyPath, int] = {}  # of arrays of tables, so far
        self.declared: dict[KeyPath, Span] = {}

    def table(self, node: Node) -> None:
        keys = [child for child in node.children if child.type in _KEYS]
        if not keys:
            return
        path = self._header(node, keys[0])
        for child in node.children:
            if child.type == "pair":
                self.pair(child, path)

    def _header(self, node: Node, key: Node) -> KeyPath:
        brackets = 2 if node.type == "table_array_element" else 1
        inner = self._span(key)
        header = Span(inner.line, max(1, inner.column - brackets), inner.width + 2 * brackets)
        path: KeyPath = ()
        for part in _parts(key):
            path = self._inside(path)
            path += (_name(part),)
            self.found.keys.setdefault(path, self._span(part))
            self.found.values.setdefault(path, header)
        if brackets == 2:
            self.lengths[path] = self.lengths.get(path, 0) + 1
            path = self._inside(path)
        elif path in self.declared:
            self.found.twice.append((path, self.declared[path], header))
        else:
            self.declared[path] = header
        self.found.values[path] = header
        return path

    def _inside(self, path: KeyPath) -> KeyPath:
        """The element that a header means which goes on after the name of an array of tables: the last."""
        return (*path, self.lengths[path] - 1) if path in self.lengths else path

    def pair(self, node: Node, table: KeyPath) -> None:
        key, value = node.children[0], node.children[-1]
        if key.type not in _KEYS or len(node.children) < 3:
            return
        path = table
        for part in _parts(key):
            path += (_name(part),)
            self.found.values.setdefault(path, self._span(part))
            last = self.found.keys.setdefault(path, self._span(part))
        again = self._span(part)
        if last != again:
            self.found.twice.append((path, last, again))
        self.value(value, path)

    def value(self, node: Node, path: KeyPath) -> None:
        self.found.values[path] = self._span(node)
        if node.type == "inline_table":
            for child in node.children:
                if child.type == "pair":
                    self.pair(child, path)
        elif node.type == "array":
            elements = [child for child in node.children if child.is_named and child.type != "comment"]
            for index, child in enumerate(elements):
                self.value(child, (*path, index))

    def _span(self, node: Node) -> Span:
        row, start = node.start_point
        line = self.lines[row]
        end = node.end_point.column if node.end_point.row == row else len(line)
        width = len(line[start:end].decode(errors="replace"))
        return Span(row + 1, len(line[:start].decode(errors="replace")) + 1, max(1, width))


_KEYS = ("bare_key", "quoted_key", "dotted_key")


def _parts(key: Node) -> list[Node]:
    if key.type != "dotted_key":
        return [key]
    return [part for child in key.children if child.type in _KEYS for part in _parts(child)]


def _name(key: Node) -> str:
    text = (key.text or b"").decode(errors="replace")
    if key.type == "bare_key":
        return text
    try:
        return next(iter(tomllib.loads(f"{text} = 0")))
    except (ValueError, StopIteration):
        return text
