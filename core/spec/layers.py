"""The layers that a spec is made of: its parents, the file, the sample's settings, `--set`; later ones win.

Tables merge key by key, anything else is replaced. Each layer keeps its own text, so that every value, and every
problem, can say where it came from.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskrecipe.core.errors import SpecError
from taskrecipe.core.spec.diagnostics import Problem, shown
from taskrecipe.core.spec.keypath import KeyPath, holds
from taskrecipe.core.spec.positions import TOP, Span
from taskrecipe.core.spec.source import Kind, Source, read

MOST_PARENTS = 16


@dataclass(frozen=True)
class Origin:
    """Where a value came from."""

    kind: Kind | None
    """None: nobody gave it, it is the default."""
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.kind is None:
            return "default"
        if self.kind == "sample":
            return "sample"
        if self.kind == "set":
            return "--set"
        return f"{self.file}:{self.line}" + (" (extended)" if self.kind == "parent" else "")


class Layers:
    """What a spec is made of, the first layer the weakest."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self.values: dict[str, Any] = {}
        for source in self.sources:
            self.values = merged(self.values, source.values)

    @property
    def file(self) -> Source:
        """The file itself, without its parents."""
        return next(source for source in self.sources if source.kind == "file")

    def with_layer(self, source: Source) -> Layers:
        """These layers with another one, just above the file's."""
        above = self.sources.index(self.file) + 1
        return Layers([*self.sources[:above], source, *self.sources[above:]])

    def owner(self, path: KeyPath) -> Source | None:
        """The layer that the value at `path` came from."""
        lists = [n for n, part in enumerate(path) if isinstance(part, int)]
        whole = path[: lists[0]] if lists else path  # a list comes from one layer as a whole
        owner = next((source for source in reversed(self.sources) if holds(source.values, whole)), None)
        return owner if owner and holds(owner.values, path) else None

    def origin(self, path: KeyPath) -> Origin:
        """Where the value at `path` came from."""
        owner = self.owner(path)
        if owner is None:
            return Origin(None)
        return Origin(owner.kind, owner.name, owner.positions.of_value(path).line)

    def place(self, path: KeyPath, *, at_key: bool = False) -> tuple[Source, Span]:
        """Where the value (or the key) at `path` stands, or the innermost table around it that was given."""
        for n in range(len(path), 0, -1):
            if owner := self.owner(path[:n]):
                places = owner.positions
                return owner, places.of_key(path) if at_key and n == len(path) else places.of_value(path[:n])
        return self.file, TOP


def load(path: Path, sets: Sequence[str] = ()) -> Layers:
    """The layers of the spec at `path`, without those of a sample; `SpecError` if one of them can't be read."""
    return Layers([*_family(path), *map(_assignment, sets)])


def sample_layer(settings: Mapping[str, Any], folder: Path) -> Source:
    """The layer of settings that suit the sample, given by dotted key."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        parts = key.split(".")
        for part in reversed(parts):
            value = {part: value}
        values = merged(values, value)
    return Source("sample", "", values, folder, "sample")


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with `over` laid on it: tables merge, anything else is replaced."""
    result = dict(under)
    for key, value in over.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _family(path: Path) -> list[Source]:
    """The file at `path` and all it extends, the eldest first."""
    family = [read(path)]
    seen = {os.path.realpath(path)}
    while (parent := _parent_path(family[0])) is not None:
        child = family[0]
        if os.path.realpath(parent) in seen:
            raise _bad_parent(child, f"{shown(str(parent))} extends this file in turn, so there is no end")
        if len(family) > MOST_PARENTS:
            raise _bad_parent(child, f"more than {MOST_PARENTS} files extend one another")
        seen.add(os.path.realpath(parent))
        family.insert(0, _read_parent(child, parent))
        del child.values["extends"]
    return family


def _parent_path(child: Source) -> Path | None:
    if "extends" not in child.values:
        return None
    given = child.values["extends"]
    if not isinstance(given, str) or not given:
        raise _bad_parent(child, f"extends must be the name of a spec, relative to this one; found {shown(given)}")
    return Path(os.path.normpath(Path(child.name).parent / given))


def _read_parent(child: Source, path: Path) -> Source:
    try:
        return read(path, "parent")
    except SpecError as error:
        [problem, *_] = error.problems
        if problem.code != "unreadable":
            raise
        raise _bad_parent(child, f"{shown(str(path))} {problem.message}") from None


def _bad_parent(child: Source, message: str) -> SpecError:
    return SpecError([child.problem(child.positions.of_value(("extends",)), "bad-extends", message)])


_BARE = r"([^=]+)=\s*((?:[A-Za-z_~/]|\.\.?/)[\w./~@:+*-]*)\s*"
_ALMOST_TOML = ("true", "false", "nan", "inf", "none", "null")


def _assignment(text: str) -> Source:
    """The layer of one `--set`. A word that can be nothing but text needs no quotes: `--set train.precision=bf16`."""
    folder = Path.cwd()
    if "\n" in text or "\r" in text:
        raise _bad_set(text, "a value must be on one line")
    try:
        source = _parsed(text, folder)
    except SpecError as error:
        raise _bad_set(text, error.problems[0].message) from None
    if "extends" in source.values:
        raise _bad_set(text, "only a file can extend another")
    return source


def _parsed(text: str, folder: Path) -> Source:
    if "=" not in text:
        raise _bad_set(text, "it is not KEY=VALUE, such as train.epochs=1")
    try:
        return Source.parse("--set", text, folder, "set")
    except SpecError:
        bare = re.fullmatch(_BARE, text)
        if not bare:
            raise
    key, word = bare.groups()
    if word.lower() in _ALMOST_TOML:
        raise _bad_set(text, f"{word} is no TOML value: text needs quotes, and true and false are lower case")
    return Source.parse("--set", f'{key}="{word}"', folder, "set")


def _bad_set(text: str, message: str) -> SpecError:
    return SpecError([Problem("--set", 1, 1, "bad-set", message, None, text, len(text))])
