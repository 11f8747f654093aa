"""Read the entry points of installed distributions without importing `importlib.metadata`.

That module imports the packages for e-mail and zip files, which takes longer than checking a spec. It is used only for
what is not a plain folder on `sys.path`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import NamedTuple


class EntryPoint(NamedTuple):
    """One line of a distribution's entry_points.txt."""

    distribution: str
    version: str
    group: str
    name: str
    target: str


def read_entry_points(prefix: str) -> Iterator[EntryPoint]:
    """Yield every entry point whose group starts with `prefix`, in the order of `sys.path`."""
    if any(hasattr(finder, "find_distributions") and not _is_path_finder(finder) for finder in sys.meta_path):
        yield from _ask_importlib(prefix, None)
        return
    for entry in dict.fromkeys(sys.path):
        if os.path.isfile(entry) or entry.endswith(".egg"):  # noqa: PTH113 - faster than a Path, for each start
            yield from _ask_importlib(prefix, [entry])
        else:
            yield from _read_folder(prefix, entry or ".")


def _is_path_finder(finder: object) -> bool:
    return getattr(finder, "__name__", "") == "PathFinder"


def _read_folder(prefix: str, folder: str) -> Iterator[EntryPoint]:
    try:
        names = [name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info"))]  # noqa: PTH208
    except OSError:
        return
    for name in names:
        text = _read(f"{folder}/{name}/entry_points.txt")
        if f"[{prefix}" in text:
            header = _read(f"{folder}/{name}/METADATA") or _read(f"{folder}/{name}/PKG-INFO")
            fields = dict(line.split(": ", 1) for line in header.partition("\n\n")[0].split("\n") if ": " in line)
            yield from _parse(prefix, text, fields.get("Name", ""), fields.get("Version", ""))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def _parse(prefix: str, text: str, distribution: str, version: str) -> Iterator[EntryPoint]:
    group = ""
    for line in map(str.strip, text.split("\n")):
        if line.startswith("[") and line.endswith("]"):
            group = line[1:-1].strip()
        elif "=" in line and group.startswith(prefix) and line[0] not in "#;":
            name, _, target = line.partition("=")
            yield EntryPoint(distribution, version, group, name.strip(), target.partition("[")[0].strip())


def _ask_importlib(prefix: str, path: list[str] | None) -> Iterator[EntryPoint]:
    from importlib.metadata import distributions

    for distribution in distributions() if path is None else distributions(path=path):
        text = distribution.read_text("entry_points.txt") or ""
        if f"[{prefix}" in text:
            yield from _parse(prefix, text, distribution.name, distribution.version)
