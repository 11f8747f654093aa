"""What rows are, as one number: the same on every machine and in every run, and another if a value changes.

Pictures that are files count by name, size, and their first and last bytes, so that a large folder stays quick.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

_ROWS_AT_ONCE, _PICTURES_AT_ONCE = 1000, 100
_END_BYTES = 4096

_known: weakref.WeakKeyDictionary[Dataset, str] = weakref.WeakKeyDictionary()


def fingerprint(rows: Dataset) -> str:
    """The sha256 of column names, types and values, however they are chunked or stored."""
    if rows not in _known:
        _known[rows] = _fingerprint(rows)
    return _known[rows]


def file_fingerprint(path: Path) -> str:
    """A quick sha256 of a file: its name, size, and first and last bytes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(_END_BYTES)
        file.seek(max(0, size - _END_BYTES))
        return hashlib.sha256(json.dumps([path.name, size]).encode() + start + file.read()).hexdigest()


def picture_columns(rows: Dataset) -> list[str]:
    """The columns that hold pictures."""
    from datasets import Image

    return [name for name, feature in rows.features.items() if isinstance(feature, Image)]


def _fingerprint(rows: Dataset) -> str:
    pictures = set(picture_columns(rows))
    digests = {name: hashlib.sha256() for name in sorted(rows.column_names)}
    for table in rows.with_format("arrow").iter(_PICTURES_AT_ONCE if pictures else _ROWS_AT_ONCE):
        for name, digest in digests.items():
            if name in pictures:
                digest.update("".join(_picture(value) for value in table[name].to_pylist()).encode())
            else:
                _feed(digest, table[name].combine_chunks())
    types = rows.features.to_dict()
    content = {
        name: ["Image" if name in pictures else _type(types[name]), digest.hexdigest()]
        for name, digest in digests.items()
    }
    return hashlib.sha256(json.dumps([len(rows), content]).encode()).hexdigest()


def _type(feature: Any) -> str:
    """What a column is: class names count, how wide offsets are doesn't."""
    return json.dumps(feature, sort_keys=True).replace("large_", "")


def _picture(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "none"
    if value["bytes"] is not None:
        return hashlib.sha256(value["bytes"]).hexdigest()
    path = Path(value["path"])
    return file_fingerprint(path) if path.is_file() else f"missing {path.name}"


def _feed(digest: Any, array: pa.Array) -> None:
    """Add an array's values to `digest`, leaving out how they lie in memory."""
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
    """Add text, bytes, or what has a form as text: dates, decimals, true and false."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_string())
    array = array.cast(pa.large_binary()).fill_null(b"")
    digest.update(pc.binary_length(array).to_numpy().tobytes())
    _, offsets, content = array.buffers()
    if content is not None:
        first, last = np.frombuffer(offsets, dtype=np.int64)[[array.offset, array.offset + len(array)]]
        digest.update(content.slice(int(first), int(last - first)))
