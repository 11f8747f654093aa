"""Rules about `[data]`: columns that nothing reads, splits that nothing uses, and paths that can't be data."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.spec.diagnostics import show_value
from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import KeyPath, has_value, name_key, value_at
from taskrecipe.system.suggestions import closest

if TYPE_CHECKING:
    from taskrecipe.recipe import Recipe
    from taskrecipe.spec.layers import Layers
    from taskrecipe.spec.spec import Data

Findings = Iterator[Finding]

USUAL_NAMES = {"train": ("train",), "validation": ("validation", "valid", "val", "dev", "eval"), "test": ("test",)}
"""Names that files of each split often have."""

_VIRTUAL = ("/proc/", "/sys/")
_MOST_ENTRIES = 1000

MIRROR: KeyPath = ("checkpoint", "mirror")


def find_unread_columns(recipe: Recipe) -> Findings:
    """Yield each column of `[data.columns]` that the recipe does not read."""
    for table, part in _recipes_with_data(recipe):
        known = part.columns()
        for ours, theirs in part.spec.data.columns.items():
            if known and not _is_read(ours, known) and _has_header(part.spec.data):
                yield _unread_column((*table, "columns", ours), theirs, known, part.spec.recipe)


def _has_header(data: Data) -> bool:
    """Whether files name their columns; if not, `[data.columns]` must name all of them, also those not read."""
    return getattr(data, "header", True) is not False


def _is_read(name: str, known: Mapping[str, Any]) -> bool:
    """Whether a recipe reads a column. One that declares `ending0` reads `ending1` too."""
    return name in known or _without_number(name) in {_without_number(other) for other in known if other[-1:].isdigit()}


def _without_number(name: str) -> str:
    return re.sub(r"\d+$", "", name)


def _unread_column(path: KeyPath, theirs: str, known: Mapping[str, Any], recipe: str) -> Finding:
    ours = str(path[-1])
    message = f"{name_key(path)}: recipe '{recipe}' does not read a column {show_value(ours)}, but {', '.join(known)}"
    if theirs in known:
        message += f'; our name comes first: {theirs} = "{ours}"'
        return Finding(path, "unknown-column", message, at_key=True)
    return Finding(path, "unknown-column", message, closest(ours, known), at_key=True)


def find_unused_splits(recipe: Recipe) -> Findings:
    """Yield each split of `[data.files]` and `[data.splits]` that nothing trains or evaluates on."""
    chosen = [*(recipe.spec.evaluate.splits or []), *recipe.spec.evaluate.final]
    for table, part in _recipes_with_data(recipe):
        data, usual = part.spec.data, part.splits()
        ours = list(dict.fromkeys(["train", *usual, *(name.rpartition("/")[2] for name in chosen), *chosen, "test"]))
        theirs = {*ours, *usual.values(), *data.splits.values()}
        for key, used in (("files", theirs), ("splits", set(ours))):
            for split in getattr(data, key):
                if split not in used:
                    free = [name for name in ours if name not in getattr(data, key)]
                    yield _unused_split((*table, key, split), ours, free)


def _unused_split(path: KeyPath, known: list[str], free: list[str]) -> Finding:
    split = str(path[-1])
    message = f"{name_key(path[:-1])} names the split {show_value(split)}, which is not used; the splits are "
    message += f"{', '.join(known)}; to evaluate on another, add it to [evaluate].splits or [evaluate].final"
    same = next((name for name, others in USUAL_NAMES.items() if split.lower() in others and name in free), None)
    return Finding(path, "unknown-split", message, same or closest(split, free), at_key=True)


def _recipes_with_data(recipe: Recipe) -> Iterator[tuple[KeyPath, Recipe]]:
    """Yield the recipe, or each of its parts, with the path of the table that names its rows."""
    from taskrecipe.optional import HasParts

    if not isinstance(recipe, HasParts):
        yield ("data",), recipe
        return
    for name, part in recipe.parts().items():
        yield ("task", "tasks", name, "data"), part


def find_local_paths(layers: Layers) -> Findings:
    """Yield each `[data].path` that is a folder or file: it takes a hub id, and files have a table of their own.

    With `revision` a hub id is certainly meant, whatever this machine has under that name.
    """
    for table in _data_tables(layers.values):
        data = value_at(layers.values, table)
        given = data.get("path")
        if isinstance(given, str) and given and "\0" not in given and "revision" not in data:
            yield from _local_path((*table, "path"), given, layers)


def _local_path(path: KeyPath, given: str, layers: Layers) -> Findings:
    owner = layers.owner(path)
    folder = owner.folder if owner else Path()
    places = [os.path.join(base, os.path.expanduser(given)) for base in (folder, Path.cwd())]  # noqa: PTH111, PTH118
    found = next((place for place in places if os.path.exists(place)), None)  # noqa: PTH110
    files_table = f"[{'.'.join(map(str, path[:-1]))}.files]"
    if found:
        kind = "folder" if os.path.isdir(found) else "file"  # noqa: PTH112
        message = f"{name_key(path)} takes a hub id, and {show_value(given)} is a {kind} on this machine; write "
        message += f"{files_table} {_example(found, folder, given)} instead"
        if not _looks_local(given):
            message += "; if a data set of the hub is meant, set its 'revision' too"
        yield Finding(path, "conflict", message)
    elif _looks_local(given):
        message = f"{name_key(path)} takes a hub id such as 'nyu-mll/glue'; found {show_value(given)}; "
        yield Finding(path, "conflict", f'{message}files and URLs are written {files_table} train = "…"')


def _looks_local(given: str) -> bool:
    return given.startswith(("/", ".", "~")) or given.endswith("/") or given.count("/") > 1 or "\\" in given


def _example(found: str, folder: Path, given: str) -> str:
    """Return lines for `[data.files]` from what a folder holds, relative to the spec."""
    at_spec = os.path.exists(os.path.join(folder, os.path.expanduser(given)))  # noqa: PTH110, PTH111, PTH118
    written = given.rstrip("/") if at_spec else os.path.relpath(found, folder)
    if not os.path.isdir(found):  # noqa: PTH112
        return f"train = {show_value(written)}"
    names = _entries(found)
    lines = [
        f"{split} = {show_value(f'{written}/{name}')}"
        for split, usual in USUAL_NAMES.items()
        for name in names[:_MOST_ENTRIES]
        if name.partition(".")[0].lower() in usual
    ]
    return ", ".join(lines[:3]) or f"train = {show_value(f'{written}/train.csv')}"


def _entries(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return []


def find_special_files(layers: Layers) -> Findings:
    """Yield each data path that is no ordinary file or folder: a device, a pipe, a file that the kernel makes up.

    Errors about data name its columns, which are the first line of a file: /proc/self/environ must not be printed.
    """
    for table in _data_tables(layers.values):
        for path, given in _file_paths(value_at(layers.values, table), table):
            owner = layers.owner(path)
            full = os.path.join(owner.folder if owner else "", os.path.expanduser(given))  # noqa: PTH111, PTH118
            if "\0" not in given and _is_special(full):
                message = f"{name_key(path)} must be a file or a folder; {show_value(given)} is neither"
                yield Finding(path, "unreadable", message)


def find_bad_urls(layers: Layers) -> Findings:
    """Yield each URL that no machine can open: of an unknown protocol, or a chain of several places.

    Nothing is opened, and the package of a protocol need not be installed.
    """
    from taskrecipe.remote.urls import find_url_problem, is_url

    given = [
        item for table in _data_tables(layers.values) for item in _file_paths(value_at(layers.values, table), table)
    ]
    if has_value(layers.values, MIRROR):
        given.append((MIRROR, value_at(layers.values, MIRROR)))
    for path, url in given:
        if isinstance(url, str) and is_url(url) and (problem := find_url_problem(url)):
            yield Finding(path, "unknown-value", f"{name_key(path)}: {show_value(url)} {problem[0]}", problem[1])


def _file_paths(data: Mapping[str, Any], table: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    values = [((*table, "images"), data.get("images"))]
    for inner in ("files", "maps"):
        found = data.get(inner)
        values += [((*table, inner, key), value) for key, value in found.items()] if isinstance(found, dict) else []
    for path, value in values:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str):
                yield path, item


def _is_special(path: str) -> bool:
    if os.path.realpath(path).startswith(_VIRTUAL):
        return True
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError:
        return False  # a glob, or not there: loading says so
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _data_tables(values: dict[str, Any]) -> list[KeyPath]:
    """Return the paths of `[data]` and of the data of each part of a recipe."""
    tasks = value_at(values, ("task", "tasks")) if has_value(values, ("task", "tasks")) else {}
    paths: list[KeyPath] = [("data",), *(("task", "tasks", name, "data") for name in tasks if isinstance(tasks, dict))]
    return [path for path in paths if has_value(values, path) and isinstance(value_at(values, path), dict)]
