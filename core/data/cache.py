"""A cache of preprocessed rows on disk. Its keys say what the rows were made of, so the same run makes them once."""

from __future__ import annotations

import os
import secrets
import shutil
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.data.cache_entry import ROWS, read_entry, write_entry
from taskrecipe.data.cache_folder import find_cache_folder, make_temporary_folder
from taskrecipe.data.cache_key import cache_key
from taskrecipe.system.library_output import quiet_libraries
from taskrecipe.system.python_warnings import collect_warnings

if TYPE_CHECKING:
    from datasets import Dataset

    from taskrecipe.model import ModelSource
    from taskrecipe.recipe import Recipe, Splits

_ROWS_AT_ONCE = 1000
_ROWS_PER_PROCESS = 50_000
"""Starting a process and collecting its rows takes about as long as preprocessing this many."""
_MEMORY_BYTES = 32 * 2**20
"""Larger results are kept in a file instead of memory."""


def preprocess_splits(recipe: Recipe, splits: Splits, source: ModelSource) -> Splits:
    """Preprocess every split that is not a stream, or read it from the cache."""
    from datasets import IterableDataset

    keys = {
        split: cache_key(recipe, rows, split, source)
        for split, rows in splits.items()
        if not isinstance(rows, IterableDataset)
    }
    return {
        split: _preprocess_split(recipe, rows, split, keys[split]) if split in keys else rows
        for split, rows in splits.items()
    }


def map_rows(
    rows: Dataset, function: Callable[[dict[str, list[Any]]], Mapping[str, Any]], keep: Collection[str] = ()
) -> Dataset:
    """Apply `function` to batches of rows, and keep the old columns in `keep`. Many rows use several processes."""
    count = max(1, min(_count_cores(), len(rows) // _ROWS_PER_PROCESS))
    small = count == 1 and rows.data.nbytes < _MEMORY_BYTES
    folder = None if small else make_temporary_folder(find_cache_folder())
    with quiet_libraries("datasets"), _serial_tokenizers(count > 1):
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


def _preprocess_split(recipe: Recipe, rows: Dataset, split: str, key: str | None) -> Dataset:
    entry = find_cache_folder() / key if key else None
    known = entry and read_entry(entry)
    if known:
        made, notes = known
    else:
        with collect_warnings() as notes:
            made = recipe.preprocess(rows, split)
        if entry and made is not rows:
            made = _store(entry, made, notes)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return made


def _store(entry: Path, rows: Dataset, notes: list[str]) -> Dataset:
    """Write rows into the cache and return them as read from there; if that fails, return the rows in memory."""
    try:
        write_entry(entry, rows.features.arrow_schema, rows.with_format("arrow").iter(_ROWS_AT_ONCE), notes)
    except OSError as error:
        warnings.warn(f"preprocessed rows are not cached in '{entry.parent}': {error.strerror or error}", stacklevel=2)
    known = read_entry(entry)
    return known[0] if known else rows


def _count_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def _serial_tokenizers(forking: bool) -> Iterator[None]:
    """Turn off the threads of tokenizers in the block: they don't survive a fork, and there are processes instead."""
    name, environment = "TOKENIZERS_PARALLELISM", os.environ
    before = environment.get(name)
    if forking:
        environment.setdefault(name, "false")
    try:
        yield
    finally:
        # datasets leaves a copy there, and modules that hold this object would not see what changes later.
        os.environ = environment  # noqa: B003 - put back, not replaced
        if before is None:
            environment.pop(name, None)
        else:
            environment[name] = before
