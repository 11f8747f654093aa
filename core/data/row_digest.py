"""A digest of rows: the same on every machine and in every run, and another one if any value changes.

Images that are files count by their whole content, which is read once and remembered (see `file_digest`).
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taskrecipe.data.facts import identify_rows, recall_fact
from taskrecipe.data.file_digest import SMALL_BYTES, FileDigests
from taskrecipe.data.row_hash import read_texts

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

_ROWS_AT_ONCE, _IMAGES_AT_ONCE = 1000, 200

_known: weakref.WeakKeyDictionary[Dataset, str] = weakref.WeakKeyDictionary()


def fingerprint(rows: Dataset) -> str:
    """Return the sha256 of column names, types and values. How they are chunked or stored does not matter."""
    if rows not in _known:
        is_cheap = rows.data.nbytes < SMALL_BYTES or _names_files(rows)
        find = partial(_fingerprint, rows)
        _known[rows] = find() if is_cheap else recall_fact(["rows", *identify_rows(rows)], find)
    return _known[rows]


def _names_files(rows: Dataset) -> bool:
    """Whether images lie outside of the rows, in files that may change."""
    import pyarrow.compute as pc

    columns = [rows.data.column(name) for name in image_columns(rows)]
    return any(pc.struct_field(column, "bytes").null_count > column.null_count for column in columns)


def image_columns(rows: Dataset) -> list[str]:
    """Return the columns that hold images."""
    from datasets import Image

    return [name for name, feature in rows.features.items() if isinstance(feature, Image)]


def _fingerprint(rows: Dataset) -> str:
    images = set(image_columns(rows))
    digests = {name: hashlib.sha256() for name in sorted(rows.column_names)}
    with FileDigests.open() if images else nullcontext() as files:
        for table in rows.with_format("arrow").iter(_IMAGES_AT_ONCE if images else _ROWS_AT_ONCE):
            for name, digest in digests.items():
                if files and name in images:
                    digest.update("".join(_digest_images(table[name].to_pylist(), files)).encode())
                else:
                    _feed(digest, table[name].combine_chunks())
    types = rows.features.to_dict()
    content = {
        name: ["Image" if name in images else _type(types[name]), digest.hexdigest()]
        for name, digest in digests.items()
    }
    return hashlib.sha256(json.dumps([len(rows), content]).encode()).hexdigest()


def _digest_images(values: list[Mapping[str, Any] | None], files: FileDigests) -> list[str]:
    """Return a digest for each image, the same whether it lies in the rows or in a file."""
    paths = [Path(value["path"]) for value in values if value and value["bytes"] is None]
    there = [path for path in paths if path.is_file()]
    known = dict(zip(there, files.digest(there), strict=True))
    return [_digest_image(value, known) for value in values]


def _digest_image(value: Mapping[str, Any] | None, known: Mapping[Path, str]) -> str:
    if value is None:
        return "none"
    if value["bytes"] is not None:
        return hashlib.sha256(value["bytes"]).hexdigest()
    path = Path(value["path"])
    return known.get(path, f"missing {path.name}")


def _type(feature: Any) -> str:
    """Return the type of a column. Class names count; the width of offsets doesn't."""
    return json.dumps(feature, sort_keys=True).replace("large_", "")


def _feed(digest: Any, array: pa.Array) -> None:
    """Add an array's values to `digest`. How they lie in memory does not matter."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    digest.update(len(array).to_bytes(8, "little"))
    if array.null_count:
        digest.update(pc.is_valid(array).to_numpy(zero_copy_only=False).tobytes())
    if pa.types.is_struct(kind):
        for field, child in zip(kind, array.flatten(), strict=True):
            digest.update(field.name.encode())
            _feed(digest, child)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        _feed(digest, pc.list_value_length(array))
        _feed(digest, array.flatten())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
        digest.update((array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False).tobytes())
    elif not pa.types.is_null(kind):
        _feed_text(digest, array)


def _feed_text(digest: Any, array: pa.Array) -> None:
    """Add text, bytes, or values that can be written as text: dates, decimals, true and false."""
    content, offsets = read_texts(array)
    digest.update(np.diff(offsets).tobytes())
    digest.update(content)
