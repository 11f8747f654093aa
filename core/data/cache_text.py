"""Texts in the cache that took long to make, such as a trained tokenizer."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from taskrecipe.data.cache_folder import find_cache_folder, temporary_folder
from taskrecipe.data.facts import make_key

ENDING = ".txt"


def recall_text(about: list[Any], make: Callable[[], str]) -> str:
    """Return the text that `make` has made of the same thing before; else let it make it now, and keep it."""
    path = find_cache_folder() / (make_key(about) + ENDING)
    text = _read(path)
    if text is None:
        text = make()
        try:
            _write(path, text)
        except OSError as error:
            warnings.warn(f"a text is not cached in '{path.parent}': {error.strerror or error}", stacklevel=2)
    return text


def _write(path: Path, text: str) -> None:
    content = text.encode()
    with temporary_folder(path.parent) as folder:
        written = folder / path.name
        written.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
        written.replace(path)


def _read(path: Path) -> str | None:
    """Return a text that is kept whole. A damaged file is removed, with a warning."""
    with suppress(FileNotFoundError):
        digest, _, content = path.read_bytes().partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() == digest:
            return content.decode()
        warnings.warn(f"the cached text in '{path}' is damaged and is made again", stacklevel=3)
        path.unlink(missing_ok=True)
    return None
