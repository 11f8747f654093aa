"""A folder at a URL: reading, writing and removing files in it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from taskrecipe.remote.filesystem import open_filesystem
from taskrecipe.remote.urls import join_url, read_protocol

OBJECT_STORES = frozenset(
    ["s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos", "tosfs", "hf", "memory"]
)
"""Filesystems without real folders, in which a file appears whole or not at all."""

CHUNK = 2**22


class Readable(Protocol):
    """An open file."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, or none at the end."""


class Storage:
    """The files below a URL. Names are relative to it, with slashes."""

    def __init__(self, url: str, wanted_by: str) -> None:
        self.url, self.wanted_by = url, wanted_by
        self.filesystem, self.root = open_filesystem(url, wanted_by)
        self.has_folders = read_protocol(url) not in OBJECT_STORES

    def inside(self, name: str) -> Storage:
        """Return the folder called `name` in this one."""
        return Storage(join_url(self.url, name), self.wanted_by)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if it is not there."""
        try:
            return bytes(self.filesystem.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def write(self, name: str, source: Readable) -> None:
        """Write a file from an open one. It may be seen half written."""
        self._make_parent(name)
        with self.filesystem.open(self._path(name), "wb") as target:
            shutil.copyfileobj(source, target, CHUNK)

    def replace(self, name: str, source: Readable) -> None:
        """Write a file from an open one. Whoever reads it meanwhile sees the former content or the new one."""
        if not self.has_folders:
            self.write(name, source)
            return
        folder, _, last = name.rpartition("/")
        temporary = f"{folder}/.{last}.tmp".lstrip("/")
        self.write(temporary, source)
        self.filesystem.mv(self._path(temporary), self._path(name))

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file to this machine."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self.filesystem.get_file(self._path(name), str(target))

    def list_sizes(self, folder: str = "") -> dict[str, int]:
        """Return the size of every file in a folder and below, by its name."""
        self.filesystem.invalidate_cache()
        found = self.filesystem.find(self._path(folder), detail=True)
        start = len(self.root.rstrip("/")) + 1
        return {path[start:]: about.get("size") or 0 for path, about in sorted(found.items())}

    def list_folders(self, folder: str = "") -> list[str]:
        """Return the names of the folders in a folder."""
        self.filesystem.invalidate_cache()
        try:
            found = self.filesystem.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        return [about["name"].rstrip("/").rpartition("/")[2] for about in found if about["type"] == "directory"]

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self.filesystem.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder that is empty. Object stores have none, and one that is not empty stays."""
        if self.has_folders:
            with suppress(Exception):  # each filesystem has an error of its own for it
                self.filesystem.rmdir(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}" if name else self.root

    def _make_parent(self, name: str) -> None:
        if self.has_folders:  # some object stores would make a bucket
            self.filesystem.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
