"""Read the small files of a run's folder. A damaged file is a problem that is kept, never an error."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from taskrecipe.run.folder_names import CHECKPOINTS, LOG, MARKER, SPEC

LARGEST_FILE = 16 * 1024 * 1024
"""Bytes. A larger JSON or TOML file in a run's folder was not written by a run."""

END_OF_LOG = 16 * 1024
"""Bytes at the start and at the end of a log in which its first and last events are."""

DEEPEST = 8
"""Levels of folders that are searched for runs: runs/<sweep>/<trial>, with room for folders of the user."""


def find_run_folders(folder: Path) -> Iterator[tuple[Path, frozenset[str]]]:
    """Yield every run folder in `folder`, or `folder` itself, with the names of its regular files.

    Links to folders are not followed, since they may form loops. Nothing inside a run is searched.
    """
    yield from _search(folder, DEEPEST)


def _search(folder: Path, depth: int) -> Iterator[tuple[Path, frozenset[str]]]:
    names, folders = _list_folder(folder)
    if MARKER in names or (SPEC in names and CHECKPOINTS in folders):  # the latter has lost its marker
        yield folder, frozenset(names)
        return
    for name in folders if depth else ():
        if not name.startswith("."):
            yield from _search(folder / name, depth - 1)


def _list_folder(folder: Path) -> tuple[set[str], list[str]]:
    """Return the regular files and the folders in a folder; nothing where it can't be read."""
    try:
        with os.scandir(folder) as entries:
            kinds = [(entry.name, entry.is_file(), entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return set(), []
    return {name for name, is_file, _ in kinds if is_file}, sorted(name for name, _, is_dir in kinds if is_dir)


class RunFiles:
    """The files of one run that say what it is and how far it came. `problems` names those that are damaged."""

    def __init__(self, folder: Path, names: frozenset[str]) -> None:
        self.folder, self.names = folder, names
        self.problems: list[str] = []

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file; an empty dictionary where it is missing or damaged."""
        return self._read(name, json.loads)

    def read_toml(self, name: str) -> dict[str, Any]:
        """Read a TOML file; an empty dictionary where it is missing or damaged."""
        return self._read(name, lambda content: tomllib.loads(content.decode()))

    def read_last_events(self) -> Iterator[dict[str, Any]]:
        """Yield the last events of the log, the newest first."""
        return _parse_events(reversed(self._read_log(-END_OF_LOG)))

    def read_first_events(self) -> Iterator[dict[str, Any]]:
        """Yield the first events of the log."""
        return _parse_events(self._read_log(0))

    def read_evaluations(self) -> Iterator[dict[str, Any]]:
        """Yield every evaluation of the log. It reads the whole log."""
        if LOG not in self.names:
            return
        try:
            with (self.folder / LOG).open("rb") as file:
                for line in file:
                    if b'"evaluate"' in line[:64]:
                        yield from _parse_events([line])
        except OSError as error:
            self._add_problem(LOG, error)

    def _read(self, name: str, parse: Any) -> dict[str, Any]:
        if name not in self.names:
            return {}
        try:
            value = parse(self._read_bytes(name))
        except (OSError, ValueError, RecursionError) as error:
            self._add_problem(name, error)
            return {}
        if isinstance(value, dict):
            return value
        self._add_problem(name, ValueError("it is not a JSON object"))
        return {}

    def _read_bytes(self, name: str) -> bytes:
        # Not pathlib: the table of a thousand runs is read in the time of these calls.
        handle = os.open(os.path.join(self.folder, name), os.O_RDONLY)  # noqa: PTH118
        try:
            content = os.read(handle, LARGEST_FILE)
            while chunk := os.read(handle, LARGEST_FILE):
                content += chunk
                if len(content) > LARGEST_FILE:
                    raise ValueError(f"it is larger than {LARGEST_FILE // 1024**2} MiB")
        finally:
            os.close(handle)
        return content

    def _read_log(self, start: int) -> list[bytes]:
        """Read the whole lines among the first bytes of the log, or with a negative `start` among its last."""
        if LOG not in self.names:
            return []
        try:
            handle = os.open(os.path.join(self.folder, LOG), os.O_RDONLY)  # noqa: PTH118
            try:
                size = os.fstat(handle).st_size
                begin = max(0, size + start) if start < 0 else start
                lines = os.pread(handle, END_OF_LOG, begin).split(b"\n")
            finally:
                os.close(handle)
        except OSError as error:
            self._add_problem(LOG, error)
            return []
        return lines[1 if begin else 0 : -1]

    def _add_problem(self, name: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.problems.append(f"{name} can't be read: {reason}")


def _parse_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the events of whole lines; damaged ones are left out."""
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event
