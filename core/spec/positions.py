"""Where every key and value of a TOML text stands, by its syntax tree.

Only problems and `recipe explain` need places, so the parser is imported when the first one is asked for.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, NamedTuple

from taskrecipe.core.spec.keypath import KeyPath

if TYPE_CHECKING:
    from tree_sitter import Node

Stretch = tuple[int, int]
"""Where something starts and ends, in bytes."""


class Span(NamedTuple):
    """A stretch of one line: both counts start at 1 and are in characters."""

    line: int
    column: int
    width: int = 1


TOP = Span(1, 1)


class Positions:
    """The place of every key and of every value; that of a table is its header."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.keys: dict[KeyPath, Stretch] = {}
        self.values: dict[KeyPath, Stretch] = {}
        self.twice: list[tuple[KeyPath, Stretch, Stretch]] = []
        """Keys and tables given a second time: what, where first, where again."""

    def of_value(self, path: KeyPath) -> Span:
        """The place of a value, or of the innermost table around it that the text has."""
        known = (self.values[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.values)
        stretch = next(known, None)
        return self.span(stretch) if stretch else TOP

    def of_key(self, path: KeyPath) -> Span:
        """The place of a key; an element of a list has only that of its value."""
        return self.span(self.keys[path]) if path in self.keys else self.of_value(path)

    def span(self, stretch: Stretch) -> Span:
        """A stretch as lines and columns; of several lines only the first counts."""
        start, end = stretch
        line_start = self.text.rfind(b"\n", 0, start) + 1
        before = self.text[line_start:start].decode()
        inside = self.text[start:end].partition(b"\n")[0].decode(errors="replace")
        return Span(self.text.count(b"\n", 0, start) + 1, len(before) + 1, max(1, len(inside)))


def locate(text: str) -> Positions:
    """Find the place of everything in `text`; of what is not TOML, as much as can be told."""
    import tree_sitter_toml
    from tree_sitter import Language, Parser

    walk = _Walk(Positions(text))
    tree = Parser(Language(tree_sitter_toml.language())).parse(walk.found.text)
    for node in tree.root_node.children:
        if node.type == "pair":
            walk.pair(node, ())
        elif node.type in ("table", "table_array_element"):
            walk.table(node)
    if tree.root_node.has_error:  # a key may seem to be in a table whose neighbour's header is broken
        walk.found.twice.clear()
    return walk.found


class _Walk:
    def __init__(self, found: Positions) -> None:
        self.found = found
        self.lengths: dict[KeyPath, int] = {}  # of arrays of tables, so far
        self.declared: dict[KeyPath, Stretch] = {}

    def table(self, node: Node) -> None:
        key = next((child for child in node.children if child.type in _KEYS), None)
        if key is None:  # a header without a name: not TOML
            return
        path = self._header(node, key)
        for child in node.children:
            if child.type == "pair":
                self.pair(child, path)

    def _header(self, node: Node, key: Node) -> KeyPath:
        end = next((child.end_byte for child in node.children if child.type in ("]", "]]")), key.end_byte)
        header = (node.start_byte, end)
        path: KeyPath = ()
        for part in _parts(key):
            path = (*self._inside(path), self._name(part))
            self.found.keys.setdefault(path, _stretch(part))
            self.found.values.setdefault(path, header)
        if node.type == "table_array_element":
            self.lengths[path] = self.lengths.get(path, 0) + 1
            path = self._inside(path)
        elif path in self.declared:
            self.found.twice.append((path, self.declared[path], header))
        self.declared.setdefault(path, header)
        self.found.values[path] = header
        return path

    def _inside(self, path: KeyPath) -> KeyPath:
        """The element that a header means which goes on after the name of an array of tables: the last."""
        return (*path, self.lengths[path] - 1) if path in self.lengths else path

    def pair(self, node: Node, table: KeyPath) -> None:
        children = node.children
        value = next((child for child in children[2:] if child.type != "comment"), None)
        if value is None or children[0].type not in _KEYS:  # not TOML
            return
        path = table
        for part in _parts(children[0]):
            path = (*path, self._name(part))
            self.found.values.setdefault(path, _stretch(part))
            first = self.found.keys.setdefault(path, _stretch(part))
        if first != _stretch(part):
            self.found.twice.append((path, first, _stretch(part)))
        self.value(value, path)

    def value(self, node: Node, path: KeyPath) -> None:
        self.found.values[path] = _stretch(node)
        if node.type == "inline_table":
            for child in node.children:
                if child.type == "pair":
                    self.pair(child, path)
        elif node.type == "array":
            elements = (child for child in node.children if child.is_named and child.type != "comment")
            for index, child in enumerate(elements):
                self.value(child, (*path, index))

    def _name(self, key: Node) -> str:
        text = self.found.text[key.start_byte : key.end_byte].decode()
        if key.type == "bare_key":
            return text
        try:
            return next(iter(tomllib.loads(f"{text} = 0")))
        except (ValueError, StopIteration):
            return text


_KEYS = ("bare_key", "quoted_key", "dotted_key")


def _parts(key: Node) -> list[Node]:
    if key.type != "dotted_key":
        return [key]
    return [part for child in key.children if child.type in _KEYS for part in _parts(child)]


def _stretch(node: Node) -> Stretch:
    # Offsets, not `start_point`: reading the column of one corrupts memory in tree-sitter 0.26.0.
    return node.start_byte, node.end_byte
