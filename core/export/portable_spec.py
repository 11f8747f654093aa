"""The spec of a run without paths of this machine: relative to the spec's file, so that it can be published."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit

from taskrecipe.plugins.registry import installed
from taskrecipe.spec.key_path import KeyPath
from taskrecipe.spec.resolve import Resolved
from taskrecipe.spec.tables import Tables
from taskrecipe.system.secrets import redact_spec

SPEC = "spec.toml"
"""The file in a model's folder that holds the spec it was trained with."""


def write_portable_spec(resolved: Resolved) -> str:
    """Return the whole spec as TOML, without paths of this machine and without secrets."""
    return redact_spec(tomlkit.dumps(portable_values(resolved)))


def portable_values(resolved: Resolved) -> dict[str, Any]:
    """Return all values of the spec. Paths are relative to its file; a path that has nothing in common is its name."""
    values = resolved.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    marked = set(Tables(values, installed()).paths)
    made: dict[str, Any] = _make_relative(values, (), marked, resolved.folder)
    return made


def _name_relative(text: str, folder: Path) -> str:
    """Return a path relative to `folder`; only its name where it has nothing in common with it."""
    path = Path(text).expanduser().absolute()
    shared = Path(os.path.commonpath([path, folder]))
    return path.name if shared == Path(path.anchor) else Path(os.path.relpath(path, folder)).as_posix()


def _make_relative(value: Any, at: KeyPath, marked: set[KeyPath], folder: Path) -> Any:
    if isinstance(value, Mapping):
        return {key: _make_relative(item, (*at, key), marked, folder) for key, item in value.items()}
    if isinstance(value, list):
        return [_make_relative(item, (*at, number), marked, folder) for number, item in enumerate(value)]
    return _name_relative(value, folder) if isinstance(value, str) and _is_path(value, at in marked) else value


def _is_path(text: str, is_marked: bool) -> bool:
    """Whether a text is a path of this machine. Keys of plugins may hold one without being marked as paths."""
    if is_marked:
        return Path(text).is_absolute() or text.startswith("~")
    return len(text) > 1 and text.startswith(("/", "~")) and "\n" not in text and Path(text).expanduser().exists()
