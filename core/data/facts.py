"""What was found out about rows: kept on disk, so that a second run on the same rows finds it without reading them.

A fact counts for the data it is about and for the code that found it. The data is named by digests of its content,
which are themselves kept until a file's size, modification time or inode changes (see `file_digest`).
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from taskrecipe.data.code_digest import digest_code
from taskrecipe.data.file_digest import connect_cache, digest_files

if TYPE_CHECKING:
    from datasets import Dataset

Fact = TypeVar("Fact")

_TABLE = "CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, fact TEXT) WITHOUT ROWID"


def recall_fact(about: list[Any], find: Callable[[], Fact]) -> Fact:
    """Return what `find` has found about the same thing before; else let it find it now, and keep it.

    Both are JSON values. What `find` raises is not kept.
    """
    key = make_key(about)
    known = look_up_fact(key)
    if known is None:
        known = find()
        keep_fact(key, known)
    fact: Fact = known
    return fact


def make_key(parts: list[Any]) -> str:
    """Return a hash of JSON values, and of this project's code."""
    content = json.dumps([*parts, digest_code("taskrecipe.recipe")], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def identify_rows(rows: Dataset) -> list[Any]:
    """Return what says which rows these are, without reading them: the files they lie in, and what was done to them.

    Rows whose origin is unknown get a new name each time.
    """
    files = [Path(file["filename"]) for file in rows.cache_files]
    return [rows._fingerprint, digest_files(files)]


def look_up_fact(key: str) -> Any:
    """Return the fact that is kept under a key; None if there is none."""
    with suppress(sqlite3.Error):
        database = connect_cache(_TABLE)
        if database is not None:
            with closing(database):
                found = database.execute("SELECT fact FROM facts WHERE key = ?", (key,)).fetchone()
                return json.loads(found[0]) if found else None
    return None


def keep_fact(key: str, fact: Any) -> None:
    """Keep a fact, which is made of JSON values, under a key. Where it can't be kept, it is found again."""
    with suppress(sqlite3.Error):
        database = connect_cache(_TABLE)
        if database is not None:
            with closing(database), database:
                database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (key, json.dumps(fact)))
