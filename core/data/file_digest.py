"""The sha256 of files, computed once: digests are kept on disk until a file changes.

A digest counts for a path, size, modification time and inode together. A second run on the same files reads nothing.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from taskrecipe.data.cache_folder import find_cache_folder

DATABASE = "file-digests.sqlite"

SMALL_BYTES = 2**20
"""What is smaller is read again each time, which takes no longer than finding what is known of it."""

_THREADS = min(16, 2 * (os.cpu_count() or 1))
_RECENT_NS = 2 * 10**9
"""A file that was just written may change again without a later modification time. Its digest is not kept."""

_SETTLED_NS = 10**8
"""Clocks of files are coarse, but not as coarse as this."""

_TABLE = (
    "CREATE TABLE IF NOT EXISTS digests"
    " (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, inode INTEGER, sha256 TEXT) WITHOUT ROWID"
)
_FIND = "SELECT sha256 FROM digests WHERE path = ? AND size = ? AND mtime_ns = ? AND inode = ?"

Key = tuple[str, int, int, int]
"""Path, size, modification time and inode."""


class FileDigests:
    """Computes digests of files, several at a time, and remembers them on disk."""

    def __init__(self, database: sqlite3.Connection | None = None) -> None:
        self._database = database

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[FileDigests]:
        """Open the digests of this machine. Where they can't be kept, every file is read."""
        database = connect_cache(_TABLE)
        try:
            yield cls(database)
        finally:
            if database is not None:
                database.close()

    def digest(self, paths: Sequence[Path], settled_after: int = _RECENT_NS) -> list[str]:
        """Return the sha256 of each file's content. It is kept for files that were written `settled_after` ago."""
        keys = [_key(path) for path in paths]
        known = self._look_up(keys)
        missing = {key: path for key, path in zip(keys, paths, strict=True) if key not in known}
        with ThreadPoolExecutor(_THREADS) as threads:
            found = dict(zip(missing, threads.map(hash_file, missing.values()), strict=True))
        self._remember(found, settled_after)
        known |= found
        return [known[key] for key in keys]

    def _look_up(self, keys: Iterable[Key]) -> dict[Key, str]:
        known: dict[Key, str] = {}
        if self._database is not None:
            with suppress(sqlite3.Error):
                for key in keys:
                    if row := self._database.execute(_FIND, key).fetchone():
                        known[key] = row[0]
        return known

    def _remember(self, found: dict[Key, str], settled_after: int) -> None:
        recent = time.time_ns() - settled_after
        rows = [(*key, digest) for key, digest in found.items() if key[2] < recent]
        if rows and self._database is not None:
            with suppress(sqlite3.Error), self._database:
                self._database.executemany("INSERT OR REPLACE INTO digests VALUES (?, ?, ?, ?, ?)", rows)


def digest_own_file(path: Path) -> str:
    """Return the sha256 of a file of this cache. Nobody changes such a file, so its digest is kept at once."""
    if path.stat().st_size < SMALL_BYTES:
        return hash_file(path)
    with FileDigests.open() as digests:
        return digests.digest([path], settled_after=_SETTLED_NS)[0]


def digest_files(paths: Sequence[Path]) -> list[str]:
    """Return the sha256 of each file's content."""
    with FileDigests.open() as digests:
        return digests.digest(paths)


def connect_cache(table: str) -> sqlite3.Connection | None:
    """Open the database of this cache, and make a table in it if it is missing; None if that is impossible."""
    path = find_cache_folder() / DATABASE
    with suppress(sqlite3.Error):
        database = sqlite3.connect(path, timeout=10.0)
        try:
            database.execute(table)
        except sqlite3.Error as error:
            database.close()
            if type(error) is sqlite3.DatabaseError:  # it is damaged; the next run starts a new one
                path.unlink(missing_ok=True)
            raise
        return database
    return None


def _key(path: Path) -> Key:
    found = path.stat()
    # SQLite stores signed numbers of 64 bits and proper text only.
    name = os.fsencode(path.absolute()).decode(errors="backslashreplace")
    return name, found.st_size, found.st_mtime_ns, found.st_ino & (2**63 - 1)


def hash_file(path: Path) -> str:
    """Read a file and return its sha256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
