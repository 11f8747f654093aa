"""An entry of the cache: rows in a folder of their own, mapped from there and never held in memory.

An entry is written into a temporary folder, then renamed, and read only if its checksum is right: a kill, a full disk
or two processes at once cost time, never a wrong row. The checksum is computed again only if the file has changed.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.data.cache_folder import temporary_folder
from taskrecipe.data.file_digest import digest_own_file, hash_file
from taskrecipe.system.atomic_files import rename_unless_there

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

ROWS, ENTRY = "rows.arrow", "entry.json"


def write_entry(entry: Path, schema: pa.Schema, tables: Iterable[pa.Table], notes: list[str]) -> None:
    """Write rows and the warnings about them. If another process has written the same entry meanwhile, it is kept."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with temporary_folder(entry.parent) as temporary:
        folder = temporary / "entry"
        folder.mkdir()
        count = write_rows(folder / ROWS, schema, tables)
        about = {"rows": count, "sha256": hash_file(folder / ROWS), "notes": notes}
        (folder / ENTRY).write_text(json.dumps(about), encoding="utf-8")
        rename_unless_there(folder, entry)


def write_rows(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write tables into one file that can be mapped, and return how many rows they have."""
    import pyarrow as pa

    count = 0
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for table in tables:
            stream.write_table(table.cast(schema))
            count += len(table)
    return count


def read_entry(entry: Path) -> tuple[Dataset, list[str]] | None:
    """Return the rows of an entry and the warnings about them. A damaged entry is removed, with a warning."""
    if not entry.is_dir():
        return None
    try:
        about = json.loads((entry / ENTRY).read_text(encoding="utf-8"))
        if digest_own_file(entry / ROWS) == about["sha256"]:
            return map_rows_of_file(entry / ROWS, name=entry.name), about["notes"]
        cause = "its contents have changed"
    except (OSError, ValueError, KeyError) as error:
        cause = str(error)
    warnings.warn(f"the cached rows in '{entry}' are damaged and are made again: {cause}", stacklevel=2)
    _remove_entry(entry)
    return None


def map_rows_of_file(path: Path, name: str) -> Dataset:
    """Return the rows of a file, which stay on disk. `name` says what they are made of."""
    from datasets import Dataset
    from datasets.table import MemoryMappedTable

    # Without a fingerprint, datasets would make one of the time of the file.
    return Dataset(MemoryMappedTable.from_file(str(path)), fingerprint=name)


def _remove_entry(entry: Path) -> None:
    """Remove an entry's own files, and its folder unless it holds others."""
    with suppress(OSError):
        for name in (ROWS, ENTRY):
            (entry / name).unlink(missing_ok=True)
        entry.rmdir()
