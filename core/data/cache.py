"""Preprocessed rows, kept on disk under what they were made of, so that the same run doesn't make them twice.

An entry is written beside its place and renamed into it, and read only if it is whole: a kill, a full disk or two
processes at once cost time, never a wrong row.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.core.data.beside import made_beside
from taskrecipe.core.data.cachekey import cache_key
from taskrecipe.core.errors import UsageError
from taskrecipe.core.notes import collected
from taskrecipe.core.quiet import quiet

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.core.model import ModelSource
    from taskrecipe.core.recipe import Recipe, Splits

ROWS, ENTRY = "rows.arrow", "entry.json"

_ROWS_AT_ONCE = 1000
_ROWS_PER_PROCESS = 50_000
"""Starting a process and bringing its rows back takes about as long as this many take it."""
_DAY = 24 * 60 * 60
_MEMORY_BYTES = 256 * 2**20
"""Beyond this, what is made waits in a file instead of memory."""


def preprocessed(recipe: Recipe, splits: Splits, source: ModelSource) -> Splits:
    """`recipe.preprocess` of every split that is stored, from the cache where it was made before."""
    from datasets import IterableDataset

    keys = {
        split: cache_key(recipe, rows, split, source)
        for split, rows in splits.items()
        if not isinstance(rows, IterableDataset)
    }
    return {split: _one(recipe, rows, split, keys[split]) if split in keys else rows for split, rows in splits.items()}


def map_rows(
    rows: Dataset, function: Callable[[dict[str, list[Any]]], Mapping[str, Any]], keep: Collection[str] = ()
) -> Dataset:
    """What `function` makes of batches of rows, and the old columns to `keep`; in several processes where that pays."""
    count = max(1, min(_cores(), len(rows) // _ROWS_PER_PROCESS))
    small = count == 1 and rows.data.nbytes < _MEMORY_BYTES
    folder = None if small else Path(tempfile.mkdtemp(prefix=".map-", dir=_root()))
    with quiet("datasets"), _serial_tokenizers(count > 1):
        made = rows.map(
            function,
            batched=True,
            remove_columns=[name for name in rows.column_names if name not in keep],
            num_proc=count if count > 1 else None,
            keep_in_memory=folder is None,
            cache_file_name=str(folder / ROWS) if folder else None,
            new_fingerprint=secrets.token_hex(8),  # else the function is pickled to name it
            load_from_cache_file=False,
            desc="Preprocessing",
        )
    if folder:
        weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    return made


def _one(recipe: Recipe, rows: Dataset, split: str, key: str | None) -> Dataset:
    entry = _root() / key if key else None
    known = entry and _read(entry)
    if known:
        made, notes = known
    else:
        with collected() as notes:
            made = recipe.preprocess(rows, split)
        if entry and made is not rows:
            made = _kept(entry, made, notes)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return made


def _kept(entry: Path, rows: Dataset, notes: list[str]) -> Dataset:
    """The same rows, from their entry in the cache if they could be written there."""
    try:
        _write(entry, rows, notes)
    except OSError as error:
        warnings.warn(f"preprocessed rows are not kept in '{entry.parent}': {error.strerror or error}", stacklevel=2)
    known = _read(entry)
    return known[0] if known else rows


def _write(entry: Path, rows: Dataset, notes: list[str]) -> None:
    import pyarrow as pa

    with made_beside(entry) as folder:
        schema = rows.features.arrow_schema
        with pa.OSFile(str(folder / ROWS), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for table in rows.with_format("arrow").iter(_ROWS_AT_ONCE):
                stream.write_table(table.cast(schema))
        about = {"rows": len(rows), "sha256": _sha256(folder / ROWS), "notes": notes}
        (folder / ENTRY).write_text(json.dumps(about), encoding="utf-8")


def _read(entry: Path) -> tuple[Dataset, list[str]] | None:
    """The rows of an entry and what was told of them; one that is damaged is told of, and removed."""
    from datasets import Dataset

    if not entry.is_dir():
        return None
    try:
        about = json.loads((entry / ENTRY).read_text(encoding="utf-8"))
        if _sha256(entry / ROWS) == about["sha256"]:
            return Dataset.from_file(str(entry / ROWS)), about["notes"]
        cause = "its contents have changed"
    except (OSError, ValueError, KeyError) as error:
        cause = str(error)
    warnings.warn(f"the cached rows in '{entry}' are damaged and are made again: {cause}", stacklevel=2)
    shutil.rmtree(entry, ignore_errors=True)
    return None


def _root() -> Path:
    """The folder of the cache; what a killed process left half made is removed after a day."""
    root = Path(os.environ.get("TASKRECIPE_CACHE") or Path.home() / ".cache" / "taskrecipe").expanduser()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"no cache can be kept in '{root}' ({error.strerror}); set TASKRECIPE_CACHE") from error
    for left in root.glob(".*-*"):
        if left.stat().st_mtime < time.time() - _DAY:
            shutil.rmtree(left, ignore_errors=True)
    return root


def _cores() -> int:
    """How many cores this process may use, where the system tells."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _serial_tokenizers(forking: bool) -> Iterator[None]:
    """Tokenizers' own threads don't survive a fork; processes take their place."""
    name = "TOKENIZERS_PARALLELISM"
    set_here = forking and name not in os.environ
    if set_here:
        os.environ[name] = "false"
    try:
        yield
    finally:
        if set_here:
            del os.environ[name]
