"""Pause Python's garbage collector while many objects are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Turn the garbage collector off inside the block, and leave it as it was.

    Loading modules and models creates a million objects that all stay. Searching them for garbage again and again
    takes a fifth of the loading time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
