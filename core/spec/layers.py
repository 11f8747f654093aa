"""The layers of a spec: its parents, the file, the sample's settings, `--set`. Later layers win.

Tables merge key by key, anything else is replaced. Each layer keeps its text, so that the place of every value and
problem is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taskrecipe.errors import SpecError
from taskrecipe.spec.diagnostics import Problem, show_value
from taskrecipe.spec.key_path import KeyPath, has_value, remove_values, value_at
from taskrecipe.spec.positions import TOP, Span
from taskrecipe.spec.sources import Kind, Source, read_source
from taskrecipe.spec.spec import Spec

MOST_PARENTS = 16


@dataclass(frozen=True)
class Origin:
    """Where a value came from."""

    kind: Kind | None
    """None: it is the default."""
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
    """All layers of a spec. Each one overrides those before it."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)
        self.values: dict[str, Any] = {}
        for source in self.sources:
            self.values = merge_tables(self.values, source.values, by_index=source.kind == "set")

    @property
    def file(self) -> Source:
        """Return the layer of the file itself, without its parents."""
        return next(source for source in self.sources if source.kind == "file")

    def with_layer(self, source: Source) -> Layers:
        """Return these layers with `source` added just after the file."""
        above = self.sources.index(self.file) + 1
        return Layers([*self.sources[:above], source, *self.sources[above:]])

    def owner(self, path: KeyPath) -> Source | None:
        """Return the layer that gives the value at `path`."""
        lists = [n for n, part in enumerate(path) if isinstance(part, int)]
        if lists and (source := self._setter(path)):
            return source
        whole = path[: lists[0]] if lists else path  # one layer gives a list as a whole
        owners = [
            s for s in reversed(self.sources) if has_value(s.values, whole) and not (lists and _sets_element(s, whole))
        ]
        if lists and len(owners) > 1 and owners[0].kind == "sample" and _repeats(owners[0], owners[1], path):
            return owners[1]
        return owners[0] if owners and has_value(owners[0].values, path) else None

    def _setter(self, path: KeyPath) -> Source | None:
        """Return the `--set` that changes one element of a list at `path`, or something in it."""
        sets = [source for source in reversed(self.sources) if source.kind == "set"]
        return next((source for source in sets if has_value(source.values, _as_keys(path))), None)

    def origin(self, path: KeyPath) -> Origin:
        """Return where the value at `path` came from."""
        owner = self.owner(path)
        if owner is None:
            return Origin(None)
        return Origin(owner.kind, owner.name, owner.positions.of_value(_path_in(owner, path)).line)

    def place(self, path: KeyPath, *, at_key: bool = False) -> tuple[Source, Span]:
        """Return the place of the value (or key) at `path`, or of the innermost given table around it."""
        for n in range(len(path), 0, -1):
            if owner := self.owner(path[:n]):
                places, given = owner.positions, _path_in(owner, path)
                return owner, places.of_key(given) if at_key and n == len(path) else places.of_value(given[:n])
        return self.file, TOP


def load_layers(path: Path, sets: Sequence[str] = ()) -> Layers:
    """Read the layers of the spec at `path`, without a sample's. Raises `SpecError` if one can't be read."""
    sources = [*_family(path), *map(_read_assignment, sets)]
    return Layers([layer for source in sources for layer in _with_json_table(source)])


def _with_json_table(source: Source) -> list[Source]:
    """Return a source, below it the JSON file that it names as its `[launch.deepspeed]`, if it names one."""
    at = ("launch", "deepspeed")
    name = value_at(source.values, at) if has_value(source.values, at) else None
    if not isinstance(name, str):
        return [source]
    from taskrecipe.spec.deepspeed import DeepSpeed
    from taskrecipe.spec.json_table import read_json_table  # few specs have one

    table = read_json_table(source, at, name, DeepSpeed.model_fields)
    source.values = remove_values(source.values, [at])
    return [table, source]


def sample_layer(settings: Mapping[str, Any], folder: Path) -> Source:
    """Make the layer of sample settings, which are given by dotted key."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        parts = key.split(".")
        for part in reversed(parts):
            value = {part: value}
        values = merge_tables(values, value)
    return Source("sample", "", values, folder, "sample")


def merge_tables(under: Mapping[str, Any], over: Mapping[str, Any], *, by_index: bool = False) -> dict[str, Any]:
    """Return `under` changed by `over`: tables merge, anything else is replaced.

    With `by_index`, a table whose keys are numbers changes those elements of a list: `techniques.0.rank=8`.
    """
    result = dict(under)
    for key, value in over.items():
        old = result.get(key)
        if by_index and isinstance(old, list) and _are_indices(value, old):
            elements = merge_tables(dict(zip(map(str, range(len(old))), old, strict=True)), value, by_index=True)
            result[key] = list(elements.values())
        elif isinstance(old, dict) and isinstance(value, dict):
            result[key] = merge_tables(old, value, by_index=by_index)
        else:
            result[key] = value
    return result


def _are_indices(value: Any, old: list[Any]) -> bool:
    """Whether a table's keys are positions in a list."""
    return isinstance(value, dict) and bool(value) and value.keys() <= {str(index) for index in range(len(old))}


def _as_keys(path: KeyPath) -> KeyPath:
    """Return a path as a `--set` writes it: positions in lists are keys."""
    return tuple(map(str, path))


def _path_in(source: Source, path: KeyPath) -> KeyPath:
    return _as_keys(path) if source.kind == "set" and not has_value(source.values, path) else path


def _sets_element(source: Source, path: KeyPath) -> bool:
    """Whether a `--set` changes only elements of the list at `path`."""
    value = value_at(source.values, path)
    return source.kind == "set" and isinstance(value, dict)


def _repeats(sample: Source, below: Source, path: KeyPath) -> bool:
    """Whether the sample's list has the value at `path` only because the layer below has it."""
    if not (has_value(sample.values, path) and has_value(below.values, path)):
        return False
    value, given = value_at(sample.values, path), value_at(below.values, path)
    return bool(value == given) or isinstance(value, dict)


def _family(path: Path) -> list[Source]:
    """Return the file at `path` and all files it extends, the root first."""
    family = [read_source(path)]
    seen = {os.path.realpath(path)}
    while (parent := _parent_path(family[0])) is not None:
        child = family[0]
        if os.path.realpath(parent) in seen:
            raise _bad_parent(child, f"{show_value(str(parent))} extends this file in turn, without end")
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
        raise _bad_parent(child, f"extends must be the name of a spec, relative to this one; found {show_value(given)}")
    return Path(os.path.normpath(Path(child.name).parent / given))


def _read_parent(child: Source, path: Path) -> Source:
    """Read a parent. Nothing of a file that is not a spec is ever quoted: it could be a file with passwords."""
    try:
        parent = read_source(path, "parent")
    except SpecError as error:
        [problem, *_] = error.problems
        if problem.code == "unreadable":
            raise _bad_parent(child, f"{show_value(str(path))} {problem.message}") from None
        raise SpecError([_hide_content(problem)]) from None
    if not any(key in Spec.model_fields or key == "extends" for key in parent.values):
        raise _bad_parent(child, f"{show_value(str(path))} is not a spec: it has none of the keys of a spec")
    return parent


def _hide_content(problem: Problem) -> Problem:
    """Return a problem of a file that could not be parsed, without any of its text."""
    what = {"empty-file": "no keys", "too-large": "too much text"}.get(problem.code, "a syntax error here")
    message = f"a parent must be a spec, and this file has {what}; `recipe validate` of the file itself says more"
    return replace(problem, message=message, source="", width=1)


def _bad_parent(child: Source, message: str) -> SpecError:
    return SpecError([child.problem(child.positions.of_value(("extends",)), "bad-extends", message)])


_BARE = r"([^=]+)=\s*((?:[A-Za-z_~/]|\.\.?/)[\w./~@:+*-]*)\s*"
_ALMOST_TOML = ("true", "false", "nan", "inf", "none", "null")


def _read_assignment(text: str) -> Source:
    """Parse one `--set`. A word that can only be text needs no quotes: `--set train.precision=bf16`."""
    folder = Path.cwd()
    if "\n" in text or "\r" in text:
        raise _bad_set(text, "a value must be on one line")
    try:
        source = _parse_assignment(text, folder)
    except SpecError as error:
        raise _bad_set(text, error.problems[0].message) from None
    if "extends" in source.values:
        raise _bad_set(text, "only a file can extend another")
    return source


def _parse_assignment(text: str, folder: Path) -> Source:
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
        raise _bad_set(text, f"{word} is not a TOML value: text needs quotes, and true and false are lower case")
    return Source.parse("--set", f'{key}="{word}"', folder, "set")


def _bad_set(text: str, message: str) -> SpecError:
    return SpecError([Problem("--set", 1, 1, "bad-set", message, None, text, len(text))])
