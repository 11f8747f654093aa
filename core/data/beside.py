"""Folders that are there whole or not at all, though several processes make the same one."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def made_beside(place: Path) -> Iterator[Path]:
    """A folder to fill, which at the end of the block becomes `place`, unless another process was first."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name[:16]}-{secrets.token_hex(8)}")
    beside.mkdir()
    try:
        yield beside
        _move(beside, place)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _move(beside: Path, place: Path) -> None:
    try:
        beside.rename(place)
    except OSError:
        if not place.is_dir():  # else another process was first, and what it made is as good
            raise
