"""Open compressed files as if they were plain."""

from __future__ import annotations

import bz2
import gzip
import lzma
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, cast

from taskrecipe.errors import DataError

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading. A compressed one is decompressed while it is read."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast("BinaryIO", gzip.open(path))
    if suffix == ".bz2":
        return cast("BinaryIO", bz2.open(path))
    if suffix == ".xz":
        return cast("BinaryIO", lzma.open(path))
    if suffix == ".zst":
        return _open_zstandard(path)
    return path.open("rb")


def _open_zstandard(path: Path) -> BinaryIO:
    try:
        return cast("BinaryIO", import_module("zstandard").open(path))
    except ModuleNotFoundError:
        raise DataError(f"reading '{path}' needs the package zstandard, which is not installed") from None
