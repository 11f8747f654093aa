"""From a spec file, with parents, sample settings and `--set`, to the one spec that a run is made from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskrecipe.core.registry import NameClashError, Registry, UnknownNameError, installed
from taskrecipe.core.spec.check import checked
from taskrecipe.core.spec.keypath import KeyPath, replaced, value_at
from taskrecipe.core.spec.layers import Layers, Origin, load, sample_layer
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.spec.tables import Tables


class Origins:
    """Where each value of a resolved spec came from."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    def of(self, key: str | KeyPath) -> Origin:
        """The origin of the value at a dotted key, or at a path of keys and list indices."""
        return self._layers.origin(tuple(key.split(".")) if isinstance(key, str) else key)


@dataclass(frozen=True)
class Resolved:
    """A whole spec, what was given of it, and where each value came from."""

    spec: Spec
    values: dict[str, Any]
    """What was given, merged, with absolute paths; defaults are only in `spec`."""
    origins: Origins
    path: Path

    def to_toml(self, kept: str | None = None) -> str:
        """The whole spec, defaults too, with the origin of each value beside it; it loads again to the same.

        Where it was read from a file that is itself such a one, `kept` is its text, and the origins told there stay.
        """
        from taskrecipe.core.spec.dump import origins_in, to_toml

        return to_toml(self.spec, self.origins.of if kept is None else origins_in(kept, self.origins.of))


def resolve(path: Path, sets: Sequence[str] = (), sample: bool = False, registry: Registry | None = None) -> Resolved:
    """Resolve the spec at `path`; later layers win: parents, the file, the sample's settings, `sets`."""
    registry = registry or installed()
    layers = load(path, sets)
    if sample:
        layers = _with_sample(layers, registry)
    spec = checked(layers, registry)
    values = _with_absolute_paths(layers, registry)
    if values != layers.values:
        spec = Spec.model_validate(values, context={"registry": registry})
    return Resolved(spec, values, Origins(layers), path)


def _with_sample(layers: Layers, registry: Registry) -> Layers:
    try:
        plugin = registry.find("recipes", str(layers.values.get("recipe")))
    except (UnknownNameError, NameClashError):
        return layers  # the name itself is a problem, which the check will find
    settings = {**plugin.load().sample_settings, "data.sample": True}
    return layers.with_layer(sample_layer(settings, layers.file.folder))


def _with_absolute_paths(layers: Layers, registry: Registry) -> dict[str, Any]:
    """The values with every path made absolute against the file that gave it, so that they hold anywhere."""
    values = layers.values
    for path, mark in Tables(values, registry).paths.items():
        owner = layers.owner(path)
        full = os.path.join(owner.folder, os.path.expanduser(value_at(values, path))) if owner else ""  # noqa: PTH111, PTH118
        if os.path.isdir(full) or (owner and not mark.hub):  # noqa: PTH112
            values = replaced(values, path, full)
    return values
