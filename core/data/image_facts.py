"""What was found out about images, kept by the digest of their files: an image that was opened once is not again."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.file_digest import FileDigests, connect_cache
from taskrecipe.data.images import Orientation, check_image, keep_encoded, read_image_rows
from taskrecipe.data.row_hash import iterate_blocks

if TYPE_CHECKING:
    from datasets import Dataset

_TABLE = (
    "CREATE TABLE IF NOT EXISTS images"
    " (sha256 TEXT, pillow TEXT, tag INTEGER, width INTEGER, height INTEGER, PRIMARY KEY (sha256, pillow))"
    " WITHOUT ROWID"
)
_FIND = "SELECT tag, width, height FROM images WHERE sha256 = ? AND pillow = ?"

Digests = Mapping[str, str]
"""The sha256 of each file, by its path."""


def check_images(rows: Dataset, split: str, column: str = "image") -> None:
    """Refuse the first row of `column` whose image can't be opened."""
    inspect_images(rows, split, column)


def inspect_images(rows: Dataset, split: str, column: str = "image") -> list[Orientation]:
    """Return how each image must be turned. Refuse the first row of `column` whose image can't be opened."""
    digests = _digest_paths(_list_paths(rows, column))
    known = _recall(digests)

    def inspect(row: Mapping[str, Any]) -> Orientation:
        source = row[column]
        is_file = source is not None and source["bytes"] is None
        return (known.get(source["path"]) if is_file else None) or check_image(source)

    orientations = read_image_rows(rows, split, column, inspect)
    _keep(rows, column, orientations, {path: digest for path, digest in digests.items() if path not in known})
    return orientations


def _list_paths(rows: Dataset, column: str) -> list[str]:
    """Return the files of the images that don't lie in the rows."""
    import pyarrow.compute as pc

    paths: list[str] = []
    for table in iterate_blocks(keep_encoded(rows.select_columns([column]), column)):
        images = table[column].filter(pc.is_null(pc.struct_field(table[column], "bytes")))
        paths += [path for path in pc.struct_field(images, "path").to_pylist() if path]
    return paths


def _digest_paths(paths: Sequence[str]) -> dict[str, str]:
    """Return the digest of each file. One that can't be read has none: opening it says why."""
    there = [path for path in dict.fromkeys(paths) if Path(path).is_file()]
    try:
        with FileDigests.open() as digests:
            return dict(zip(there, digests.digest([Path(path) for path in there]), strict=True))
    except OSError:
        return {}


def _recall(digests: Digests) -> dict[str, Orientation]:
    known: dict[str, Orientation] = {}
    with suppress(sqlite3.Error):
        database = connect_cache(_TABLE) if digests else None
        if database is not None:
            with closing(database):
                for path, digest in digests.items():
                    if found := database.execute(_FIND, (digest, version("pillow"))).fetchone():
                        known[path] = Orientation(*found)
    return known


def _keep(rows: Dataset, column: str, orientations: Sequence[Orientation], new: Digests) -> None:
    """Keep what was found about new files, unless they have changed while they were opened."""
    if not new:
        return
    found = dict(zip(_name_images(rows, column), orientations, strict=True))
    same = [(path, digest) for path, digest in _digest_paths(list(new)).items() if new[path] == digest]
    values = [
        (digest, version("pillow"), turned.tag, turned.width, turned.height)
        for path, digest in same
        if (turned := found.get(path)) is not None
    ]
    with suppress(sqlite3.Error):
        database = connect_cache(_TABLE)
        if database is not None:
            with closing(database), database:
                database.executemany("INSERT OR REPLACE INTO images VALUES (?, ?, ?, ?, ?)", values)


def _name_images(rows: Dataset, column: str) -> list[str | None]:
    """Return the path of each row's image."""
    import pyarrow.compute as pc

    encoded = keep_encoded(rows.select_columns([column]), column)
    return [path for table in iterate_blocks(encoded) for path in pc.struct_field(table[column], "path").to_pylist()]
