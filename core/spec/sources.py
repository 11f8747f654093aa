"""Read a TOML file safely, whatever it is: a FIFO, ten megabytes, deeply nested.

A text that could hang or crash the parser is refused before parsing. Every error has a place in the file. Messages
quote lines of the file, and logs of CI are public: a file that is not called `.toml` is refused unread, links
included, so that no spec can have another file printed.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from taskrecipe.errors import SpecError
from taskrecipe.spec import positions
from taskrecipe.spec.diagnostics import MOST_PROBLEMS, Problem
from taskrecipe.spec.positions import TOP, Positions, Span

SUFFIX = ".toml"
RUN_SPEC, RUN_RECORD = "spec.toml", "environment.json"
"""The spec in a run's folder, and the file next to it that names the folder which its paths are relative to."""
LARGEST_FILE = 1024 * 1024
DEEPEST = 32
"""Levels of nested tables and lists, and parts of a dotted key."""
LONGEST_STRING = 16 * 1024
LONGEST_INTEGER = 1024
"""In bits. Python refuses to print much longer integers."""
TOO_MANY_DIGITS = "an integer has too many digits"
LARGEST_COUNT = 10_000
"""Of lines, keys and list elements together."""

Kind = Literal["file", "parent", "set", "sample"]


class Source:
    """One TOML text: its values, and the position of each."""

    def __init__(self, name: str, text: str, values: dict[str, Any], folder: Path, kind: Kind) -> None:
        self.name, self.text, self.values, self.folder, self.kind = name, text, values, folder, kind

    @classmethod
    def parse(cls, name: str, text: str, folder: Path, kind: Kind) -> Source:
        """Parse `text`. Raises `SpecError` if it is not TOML or too large."""
        source = cls(name, text, {}, folder, kind)
        source.values = _parse(source)
        return source

    @cached_property
    def positions(self) -> Positions:
        """Return the position of every key and value."""
        return positions.locate_keys(self.text)

    @cached_property
    def _lines(self) -> list[str]:
        return self.text.split("\n")

    def problem(self, span: Span, code: str, message: str, suggestion: str | None = None) -> Problem:
        """Make a problem at a position of this text."""
        line = self._lines[span.line - 1] if span is not TOP and span.line <= len(self._lines) else ""
        return Problem(self.name, span.line, span.column, code, message, suggestion, line, span.width)


def read_source(path: Path, kind: Kind = "file") -> Source:
    """Read and parse a file. Raises `SpecError` if that can't be done safely."""
    return Source.parse(str(path), read_text(path), _folder_of_paths(path), kind)


def read_text(path: Path, suffix: str = SUFFIX) -> str:
    """Read a file whose name ends in `suffix`. Raises `SpecError` if that can't be done safely."""
    _require_suffix(path, suffix)
    return _decode(_read_bytes(path), str(path))


def _folder_of_paths(path: Path) -> Path:
    """Return the folder that relative paths in a file start from: its own, or of a run's spec that of the original."""
    full = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
    folder = full.parent
    if full.name != RUN_SPEC or not (folder / RUN_RECORD).is_file():
        return folder
    import json  # not needed for other specs, and validating one is to start quickly

    try:
        record = json.loads(_read_bytes(folder / RUN_RECORD))
        # Where it was; or, if all of it has moved together, where it is from here.
        places = [Path(record["spec_folder"]), Path(os.path.normpath(folder / record.get("spec_folder_from_here", "")))]
    except (SpecError, ValueError, LookupError, TypeError):  # some other program's file
        return folder
    return next((place for place in places if place.is_absolute() and place.is_dir()), folder)


def _require_suffix(path: Path, suffix: str) -> None:
    """Refuse a file whose name does not end in `suffix`, and a link to such a file."""
    name = str(path)
    if not os.path.lexists(path) or os.path.isdir(path):  # noqa: PTH112 - a path may contain anything, even NUL
        return  # opening it says why it can't be read
    if not name.endswith(suffix):
        raise _refuse(name, "unreadable", f"is not read: its name must end in {suffix}")
    if not os.path.realpath(path).endswith(suffix):
        raise _refuse(name, "unreadable", f"is not read: it is a link to a file whose name does not end in {suffix}")


def _read_bytes(path: Path) -> bytes:
    """Return the content of a regular file that is not too large."""
    name = str(path)
    try:
        with open(path, "rb", opener=_open_file) as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise _refuse(name, "unreadable", f"can't be read: {reason[:1].lower()}{reason[1:]}") from None
    if len(content) > LARGEST_FILE:
        raise _refuse(name, "too-large", f"the file is larger than {LARGEST_FILE // 1024} KiB, the limit for a spec")
    return content


def _open_file(path: str, flags: int) -> int:
    """Open a regular file. Anything else is refused, and a FIFO is not waited for."""
    handle = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise OSError(0, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")
    return handle


def _decode(content: bytes, name: str) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _refuse(name, "syntax", "the file is UTF-16; save it as UTF-8")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        before = content[: error.start].decode("utf-8", "replace")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise SpecError([Problem(name, line, column, "syntax", message)]) from None


def _parse(source: Source) -> dict[str, Any]:
    if sum(map(source.text.count, "\n=,")) > LARGEST_COUNT:
        raise SpecError([source.problem(TOP, "too-large", f"more than {LARGEST_COUNT} lines, keys and list elements")])
    if excess := _find_excess(source.text):
        offset, message = excess
        raise SpecError([source.problem(_span(source.text, offset), "too-large", message)])
    try:
        values = tomllib.loads(source.text)
    except (ValueError, RecursionError) as error:
        raise SpecError(_syntax_problems(source, error)) from None
    if flaw := _find_flaw(values):
        raise SpecError([source.problem(_find_long_number(source.text) or TOP, "too-large", flaw)])
    if not values:
        advice = "the file has no keys; `recipe new NAME` writes a spec to start from"
        raise SpecError([source.problem(TOP, "empty-file", advice)])
    return values


# A string without an end reaches to the end of the text. The parser stops there too, so nothing is missed.
_MARKS = (
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)'
    r"|'''(?:[^']|'(?!''))*+(?:'''|\Z)"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?'
    r"|'[^'\n]*+'?"
    r"|\#[^\n]*+"
    r"|[][{}.=,\n]"
)


def _find_excess(text: str) -> tuple[int, str] | None:
    """Return where and why the parser would take too long or need too much stack."""
    if len(text) <= LONGEST_STRING and text.count("[") + text.count("{") <= DEEPEST and text.count(".") < DEEPEST:
        return None
    depth = dots = 0
    for token in re.finditer(_MARKS, text, re.DOTALL):
        mark = token[0]
        depth += (mark in ("[", "{")) - (mark in ("]", "}"))
        dots = 0 if mark in ("=", ",", "\n", "[", "{") else dots + (mark == ".")
        if depth > DEEPEST or dots >= DEEPEST:
            return token.start(), f"nesting and dotted keys may have {DEEPEST} levels at most"
        if len(mark) > LONGEST_STRING:
            return token.start(), f"a text or comment may have {LONGEST_STRING} characters at most"
    return None


def _span(text: str, offset: int) -> Span:
    return Span(text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset))


def _find_flaw(value: Any, depth: int = 0) -> str | None:
    """Return why a value can't be handled: tables nested too deep, or integers too long to print."""
    if isinstance(value, int) and value.bit_length() > LONGEST_INTEGER:
        return TOO_MANY_DIGITS
    if not isinstance(value, (dict, list)):
        return None
    if depth > DEEPEST:
        return f"tables may be nested {DEEPEST} deep at most"
    items = value.values() if isinstance(value, dict) else value
    return next((flaw for item in items if (flaw := _find_flaw(item, depth + 1))), None)


def _find_long_number(text: str) -> Span | None:
    number = re.search(rf"\b[0-9][0-9a-fA-Fxob_]{{{LONGEST_INTEGER // 4},}}", text)
    return _span(text, number.start()) if number else None


_PLACE = r" \(at (?:line (\d+), column (\d+)|end of document)\)$"


def _syntax_problems(source: Source, error: Exception) -> list[Problem]:
    places = source.positions
    if places.twice:
        return [
            source.problem(
                places.span(again), "duplicate-key", f"'{path[-1]}' is already given in line {places.span(first).line}"
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
    if number := _find_long_number(text):  # the parser does not say where it is
        return number, "too-large", TOO_MANY_DIGITS
    return TOP, "syntax", f"not TOML: {message}"


def _refuse(name: str, code: str, message: str) -> SpecError:
    return SpecError([Problem(name, 1, 1, code, message)])
