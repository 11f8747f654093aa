"""Reading TOML that may be anything: a FIFO, ten megabytes, nested beyond reason.

What could hang or crash the parser is refused before it starts; whatever is wrong becomes a problem with a place.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from taskrecipe.core.errors import SpecError
from taskrecipe.core.spec import positions
from taskrecipe.core.spec.diagnostics import MOST_PROBLEMS, Problem
from taskrecipe.core.spec.positions import TOP, Positions, Span

LARGEST_FILE = 1024 * 1024
DEEPEST = 32
"""Tables and lists within one another, and parts of a dotted key."""
LONGEST_STRING = 16 * 1024
LONGEST_INTEGER = 1024
"""In bits; Python refuses to print much longer ones."""
TOO_MANY_DIGITS = "an integer has too many digits"
LARGEST_COUNT = 10_000
"""Lines, keys and list elements, all together."""

Kind = Literal["file", "parent", "set", "sample"]


class Source:
    """One TOML text: its values, and the place of each."""

    def __init__(self, name: str, text: str, values: dict[str, Any], folder: Path, kind: Kind) -> None:
        self.name, self.text, self.values, self.folder, self.kind = name, text, values, folder, kind

    @classmethod
    def parse(cls, name: str, text: str, folder: Path, kind: Kind) -> Source:
        """Parse `text`; `SpecError` if it is not TOML, or more of it than a spec needs."""
        source = cls(name, text, {}, folder, kind)
        source.values = _parse(source)
        return source

    @cached_property
    def positions(self) -> Positions:
        """The place of every key and value."""
        return positions.locate(self.text)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def problem(self, span: Span, code: str, message: str, suggestion: str | None = None) -> Problem:
        """A problem at a place of this text."""
        line = self._lines[span.line - 1] if span is not TOP and span.line <= len(self._lines) else ""
        return Problem(self.name, span.line, span.column, code, message, suggestion, line, span.width)


def read(path: Path, kind: Kind = "file") -> Source:
    """Read and parse a file; it is refused by `SpecError` if that can't be done safely."""
    name = str(path)
    text = _decode(_bytes(path), name)
    return Source.parse(name, text, Path(os.path.abspath(path)).parent, kind)  # noqa: PTH100 - links stay as they are


def _bytes(path: Path) -> bytes:
    """The content of a regular file within the limit."""
    name = str(path)
    try:
        with open(path, "rb", opener=_open_file) as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise _refused(name, "unreadable", f"can't be read: {reason[:1].lower()}{reason[1:]}") from None
    if len(content) > LARGEST_FILE:
        raise _refused(name, "too-large", f"larger than {LARGEST_FILE // 1024} KiB, which no spec needs to be")
    return content


def _open_file(path: str, flags: int) -> int:
    """Open a regular file and nothing else, without waiting for the other end of a FIFO."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(0, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")
    return handle


def _decode(content: bytes, name: str) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _refused(name, "syntax", "the file is UTF-16, and TOML is UTF-8: save it as that")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"byte 0x{content[error.start]:02x} is not UTF-8, which TOML is: save the file as that"
        raise SpecError([Problem(name, line, column, "syntax", message)]) from None


def _parse(source: Source) -> dict[str, Any]:
    if sum(map(source.text.count, "\n=,")) > LARGEST_COUNT:
        raise SpecError([source.problem(TOP, "too-large", f"more than {LARGEST_COUNT} lines, keys and list elements")])
    if excess := _excess(source.text):
        offset, message = excess
        raise SpecError([source.problem(_span(source.text, offset), "too-large", message)])
    try:
        values = tomllib.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise SpecError(_syntax_problems(source, error)) from None
    if flaw := _flaw(values):
        raise SpecError([source.problem(_long_number(source.text) or TOP, "too-large", flaw)])
    if not values:
        advice = "the file has no keys; `recipe new NAME` writes a spec to start from"
        raise SpecError([source.problem(TOP, "empty-file", advice)])
    return values


# Strings that don't end run to the end of the text: the parser stops there too, so nothing hides behind them.
_MARKS = (
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^']|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+"
    r"|[][{}.=,\n]"
)


def _excess(text: str) -> tuple[int, str] | None:
    """Where and why the parser would need ages, or more stack than there is."""
    if len(text) <= LONGEST_STRING and text.count("[") + text.count("{") <= DEEPEST and text.count(".") < DEEPEST:
        return None
    depth = dots = 0
    for token in re.finditer(_MARKS, text, re.DOTALL):
        mark = token[0]
        depth += (mark in ("[", "{")) - (mark in ("]", "}"))
        dots = 0 if mark in ("=", ",", "\n", "[", "{") else dots + (mark == ".")
        if depth > DEEPEST or dots >= DEEPEST:
            return token.start(), f"nesting and dotted keys may have {DEEPEST} levels at the most"
        if len(mark) > LONGEST_STRING:
            return token.start(), f"a text or comment may have {LONGEST_STRING} characters at the most"
    return None


def _span(text: str, offset: int) -> Span:
    return Span(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _flaw(value: Any, depth: int = 0) -> str | None:
    """What makes a value unfit to be handled at all: tables in tables without end, integers that can't be printed."""
    if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
        return TOO_MANY_DIGITS
    if not isinstance(value, (dict, list)):
        return None
    if depth > DEEPEST:
        return f"tables may be nested {DEEPEST} deep at the most"
    items = value.values() if isinstance(value, dict) else value
    return next((flaw for item in items if (flaw := _flaw(item, depth + 1))), None)


def _long_number(text: str) -> Span | None:
    number = re.search(rf"\b[0-9][0-9a-fA-Fxob_]{{{LONGEST_INTEGER // 4},}}", text)
    return _span(text, number.start()) if number else None


_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)$"


def _syntax_problems(source: Source, error: Exception) -> list[Problem]:
    places = source.positions
    if places.twice:
        return [
            source.problem(
                places.span(again), "duplicate-key", f"'{path[-1]}' is given already in line {places.span(first).line}"
            )
            for path, first, again in places.twice[:MOST_PROBLEMS]
        ]
    return [source.problem(*_syntax_problem(source.text, error))]


def _syntax_problem(text: str, error: Exception) -> tuple[Span, str, str]:
    message = str(error)
    if place := re.search(_PLACE, message):
        end = _span(text, len(text.rstrip("\n")))
        span = Span(int(place[1]), int(place[2])) if place[1] else end
        return span, "syntax", f"not TOML: {message[0].lower()}{message[1 : place.start()]}"
    if number := _long_number(text):  # the parser says no more than that there is one
        return number, "too-large", TOO_MANY_DIGITS
    return TOP, "syntax", f"not TOML: {message}"


def _refused(name: str, code: str, message: str) -> SpecError:
    return SpecError([Problem(name, 1, 1, code, message)])
