"""Resolve a spec file, its parents, sample settings and `--set` to the spec of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taskrecipe.errors import NameClashError, UnknownNameError
from taskrecipe.plugins.registry import Registry, installed
from taskrecipe.remote.urls import is_url
from taskrecipe.spec.key_path import KeyPath, replace_value, value_at
from taskrecipe.spec.layers import Layers, Origin, load_layers, sample_layer
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.table import PathMark
from taskrecipe.spec.tables import Tables
from taskrecipe.spec.validation import validate_layers


class Origins:
    """Where each value of a resolved spec came from."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers
        self.folder = layers.file.folder

    def of(self, key: str | KeyPath) -> Origin:
        """Return the origin of the value at a dotted key, or at a path of keys and list indices."""
        return self._layers.origin(tuple(key.split(".")) if isinstance(key, str) else key)


@dataclass(frozen=True)
class Resolved:
    """A complete spec, the values that were given, and where each came from."""

    spec: Spec
    values: dict[str, Any]
    """The given values, merged, with absolute paths. Defaults are only in `spec`."""
    origins: Origins
    path: Path
    paths: tuple[KeyPath, ...] = ()
    """The keys of the given values that are paths."""
    copied: str | None = None
    """The text of the resolved copy that this spec was read from, if it was not read from `path` itself."""

    def to_toml(self, kept: str | None = None) -> str:
        """Write the complete spec, defaults included, with the origin of each value in a comment.

        Reading it gives the same spec. If this spec was read from such a file, pass its text as `kept`: its comments
        stay.
        """
        from taskrecipe.spec.dump import dump_values, origins_in, to_toml

        values = self._with_relative_paths(dump_values(self.spec))
        kept = kept or self.copied
        origin = self.origins.of if kept is None else origins_in(kept, self.origins.of)
        return to_toml(values, lambda path: self._shorten(origin(path)))

    @property
    def folder(self) -> Path:
        """The folder of the spec's file: paths are relative to it, also in the copy that a run keeps."""
        return self.origins.folder if self.copied is None else Path(os.path.abspath(self.path)).parent  # noqa: PTH100

    def _with_relative_paths(self, values: dict[str, Any]) -> dict[str, Any]:
        for path in self.paths:
            values = replace_value(values, path, make_relative(value_at(values, path), self.folder))
        return values

    def _shorten(self, origin: Origin | str) -> Origin | str:
        if isinstance(origin, str) or origin.file is None:
            return origin
        return replace(origin, file=make_relative(origin.file, self.folder))


def make_relative(text: str, folder: Path) -> str:
    """Return an absolute path relative to `folder`. It stays as it is where only the root is common to both."""
    path = Path(text)
    if not path.is_absolute() or len(Path(os.path.commonpath([path, folder])).parts) < 2:
        return text
    relative = os.path.relpath(path, folder)
    # A link on the way would let `..` lead elsewhere.
    same = os.path.realpath(folder / relative) == os.path.realpath(path)
    return Path(relative).as_posix() if same else text


def resolve(path: Path, sets: Sequence[str] = (), sample: bool = False, registry: Registry | None = None) -> Resolved:
    """Resolve the spec at `path`. Later layers win: parents, the file, the sample's settings, `sets`."""
    registry = registry or installed()
    layers = load_layers(path, sets)
    if sample:
        layers = _with_sample(layers, registry)
    spec = validate_layers(layers, registry)
    paths = Tables(layers.values, registry).paths
    values = _with_absolute_paths(layers, paths)
    if values != layers.values:
        spec = Spec.model_validate(values, context={"registry": registry})
    return Resolved(spec, values, Origins(layers), path, tuple(paths))


def _with_sample(layers: Layers, registry: Registry) -> Layers:
    try:
        plugin = registry.find("recipes", str(layers.values.get("recipe")))
    except (UnknownNameError, NameClashError):
        return layers  # validation reports the wrong name
    settings = {**plugin.load().sample_settings, "data.sample": True}
    given = layers.values.get("techniques")
    if isinstance(given, list):
        techniques = [_with_sample_settings(table, registry) for table in given]
        if techniques != given:
            settings["techniques"] = techniques  # a layer replaces a list as a whole
    return layers.with_layer(sample_layer(settings, layers.file.folder))


def _with_sample_settings(table: Any, registry: Registry) -> Any:
    """Return the table of a technique with its values for sample data; a wrong table as it is."""
    if not isinstance(table, dict):
        return table
    try:
        return {**table, **registry.technique(str(table.get("name"))).sample_settings}
    except (UnknownNameError, NameClashError):
        return table  # validation reports the wrong name


def _with_absolute_paths(layers: Layers, paths: dict[KeyPath, PathMark]) -> dict[str, Any]:
    """Return the values with absolute paths: a relative path is relative to the file that gives it."""
    values = layers.values
    for path, mark in paths.items():
        if mark.url and is_url(value_at(values, path)):
            continue
        owner = layers.owner(path)
        full = os.path.join(owner.folder, os.path.expanduser(value_at(values, path))) if owner else ""  # noqa: PTH111, PTH118
        if os.path.isdir(full) or (owner and not mark.hub):  # noqa: PTH112
            values = replace_value(values, path, full)
    return values
