"""Arrays that don't take memory in proportion to the text: a large one lies in a temporary file."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

IN_MEMORY = 32 * 2**20
"""Bytes from which on an array is in a file."""


def make_array(length: int, dtype: Any) -> NDArray[Any]:
    """Return an array to be filled. The system can drop the pages of a large one, and its file goes with it."""
    size = length * np.dtype(dtype).itemsize
    if size >= IN_MEMORY:
        from taskrecipe.data.cache_folder import find_cache_folder

        with suppress(OSError), tempfile.TemporaryFile(dir=find_cache_folder()) as file:
            # A mapped file that has no room on the disk would end the process, without an error.
            os.posix_fallocate(file.fileno(), 0, size)
            return np.asarray(np.memmap(file, dtype=dtype, mode="r+", shape=(length,)))
    return np.empty(length, dtype)
