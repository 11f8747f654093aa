"""Find the position of every key and value in a TOML text, from its syntax tree.

Only problems and `recipe explain` need positions, so the parser is imported when the first one is needed.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, NamedTuple

from taskrecipe.spec.key_path import KeyPath

if TYPE_CHECKING:
    from tree_sitter import Node

Stretch = tuple[int, int]
"""Start and end of something, in bytes."""


class Span(NamedTuple):
    """A part of one line. Line and column start at 1; column and width are in characters."""

    line: int
    column: int
    width: int = 1


TOP = Span(1, 1)


class Positions:
    """The position of every key and value. The position of a table is its header."""

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        self.keys: dict[KeyPath, Stretch] = {}
        self.values: dict[KeyPath, Stretch] = {}
        self.twice: list[tuple[KeyPath, Stretch, Stretch]] = []
        """Keys and tables given twice: the path, the first position, the second."""

    def of_value(self, path: KeyPath) -> Span:
        """Return the position of a value, or of the innermost table around it that the text has."""
        known = (self.values[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.values)
        stretch = next(known, None)
        return self.span(stretch) if stretch else TOP

    def of_key(self, path: KeyPath) -> Span:
        """Return the position of a key; for an element of a list, of its value."""
        return self.span(self.keys[path]) if path in self.keys else self.of_value(path)

    def span(self, stretch: Stretch) -> Span:
        """Convert a stretch to line and column. If it has several lines, only the first counts."""
        start, end = stretch
        line_start = self.text.rfind(b"\n", 0, start) + 1
        before = self.text[line_start:start].decode()
        inside = self.text[start:end].partition(b"\n")[0].decode(errors="replace")
        return Span(self.text.count(b"\n", 0, start) + 1, len(before) + 1, max(1, len(inside)))


def locate_keys(text: str) -> Positions:
    """Find all positions in `text`. If it is not TOML, find as many as possible."""
    import tree_sitter_toml
    from tree_sitter import Language, Parser

    walk = _Walk(Positions(text))
    tree = Parser(Language(tree_sitter_toml.language())).parse(walk.found.text)
    for node in tree.root_node.children:
        if node.type == "pair":
            walk.pair(node, ())
        elif node.type in ("table", "table_array_element"):
            walk.table(node)
    if tree.root_node.has_error:  # after a broken header, keys seem to be in the table before it
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
        """Return the last element of an array of tables, which a longer header is about; else the path itself."""
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
