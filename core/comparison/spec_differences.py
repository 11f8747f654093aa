"""Differences of specs, each value with where it came from. A spec is a file, resolved, or that of a run's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskrecipe.errors import RecipeError, UsageError
from taskrecipe.run.folder_names import SPEC
from taskrecipe.run.resume_guard import is_harmless
from taskrecipe.spec.dump import dump_values, origins_in
from taskrecipe.spec.key_path import KeyPath, label_by_name
from taskrecipe.spec.layers import Origin, load_layers
from taskrecipe.spec.resolve import resolve


@dataclass(frozen=True)
class SpecDifference:
    """A key whose values differ between specs."""

    key: str
    values: tuple[Any, ...]
    """Its value in each spec; None where it is not given."""
    origins: tuple[str | None, ...]
    """Where each value came from: `file:line`, `--set`, `sample` or `default`; None where it is not given."""

    @property
    def affects_results(self) -> bool:
        """Whether the key can change what is trained; if not, it says what is printed, kept, or how work is split."""
        return not is_harmless(self.key)

    def to_json(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        return {
            "key": self.key,
            "values": list(self.values),
            "origins": list(self.origins),
            "affects_results": self.affects_results,
        }


@dataclass(frozen=True)
class SpecValues:
    """Every value of a complete spec by dotted key, and where each came from."""

    values: dict[str, Any]
    origins: dict[str, str]


def diff_specs(first: str | Path, second: str | Path) -> list[SpecDifference]:
    """Return the keys whose values differ between two specs: files, which are resolved, or folders of runs."""
    return find_spec_differences([read_spec_values(Path(path)) for path in (first, second)])


def find_spec_differences(specs: Sequence[SpecValues]) -> list[SpecDifference]:
    """Return the keys whose values are not the same in all specs, in the order of the specs."""
    found = []
    for key in dict.fromkeys(key for spec in specs for key in spec.values):
        values = tuple(spec.values.get(key) for spec in specs)
        if any(value != values[0] for value in values):
            found.append(SpecDifference(key, values, tuple(spec.origins.get(key) for spec in specs)))
    return found


def read_spec_values(path: Path) -> SpecValues:
    """Read a spec file or the spec of a run's folder, defaults included."""
    if not path.is_dir():
        resolved = resolve(path)
        return _collect(dump_values(resolved.spec), resolved.origins.of)
    kept = path / SPEC
    if not kept.is_file():
        raise UsageError(f"{path} is neither a spec nor the folder of a run: it has no {SPEC}")
    text = kept.read_text("utf-8", errors="replace")
    try:
        resolved = resolve(kept)
        found = _collect(dump_values(resolved.spec), origins_in(text, resolved.origins.of))
    except RecipeError:  # written by another version, or its plugins are not installed: it is compared as it is
        layers = load_layers(kept)
        found = _collect(layers.values, origins_in(text, layers.origin))
    return SpecValues(found.values, {key: _from_here(origin, path) for key, origin in found.origins.items()})


def _from_here(origin: str, folder: Path) -> str:
    """Return an origin with its file as seen from here: a run's spec names files as seen from the run's folder."""
    named = re.fullmatch(r"(.+)(:[0-9]+(?: \(extended\))?)", origin)
    return f"{os.path.normpath(folder / named[1])}{named[2]}" if named else origin


def _collect(values: Mapping[str, Any], origin: Callable[[KeyPath], Origin | str]) -> SpecValues:
    paths = _label_paths(values, (), "")
    return SpecValues(
        {label: value for label, (_, value) in paths.items()},
        {label: str(origin(path)) for label, (path, _) in paths.items()},
    )


def _label_paths(table: Mapping[str, Any], path: KeyPath, prefix: str) -> dict[str, tuple[KeyPath, Any]]:
    """Return every value with its path by dotted key. Entries of a list of tables are called by their names."""
    found: dict[str, tuple[KeyPath, Any]] = {}
    for key, value in table.items():
        here, label = (*path, key), f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _label_paths(value, here, f"{label}.")
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            names = label_by_name([str(item.get("name", number)) for number, item in enumerate(value)])
            found[label] = here, names  # their order counts too
            for number, (name, item) in enumerate(zip(names, value, strict=True)):
                found |= _label_paths(item, (*here, number), f"{label}.{name}.")
        else:
            found[label] = here, value
    return found
