"""Writing so that a crash leaves the old file or the new one, never half of either."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taskrecipe.core.errors import DiskFullError

Buffer = bytes | memoryview

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def replace(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step; one process writes there at a time."""
    temporary = path.with_name(f".{path.name}.tmp")
    with naming_full_disk(path, len(data)), removed_on_failure(temporary):
        temporary.unlink(missing_ok=True)  # of a write that was killed
        write_new(temporary, [data])
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


def write_new(path: Path, buffers: Iterable[Buffer]) -> None:
    """Write a file that isn't there yet. The disk has it only after `sync`."""
    with path.open("xb") as file:
        file.writelines(buffers)


def sync_tree(path: Path) -> None:
    """Return once the disk has everything in this folder and below."""
    for folder, _, files in os.walk(path):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


def sync(path: Path) -> None:
    """Return once the disk has this file's content, or the names in this folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def removed_on_failure(path: Path) -> Iterator[None]:
    """Leave no half-written file or folder at `path` where something fails, a signal's exception included."""
    try:
        yield
    except BaseException:
        remove(path)
        raise


def remove(path: Path) -> None:
    """Delete a file or a folder; what can't be deleted is left, and a symbolic link is never followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def naming_full_disk(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a full disk or quota into an error that names what was to be written, and how large it is."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number not in NO_ROOM:
            raise
        cause = "quota used up" if number == errno.EDQUOT else "disk full"
        raise DiskFullError(f"{cause} while writing {path}: {room(path, needed)}; make room and resume") from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))  # how libraries written in Rust pass it on
    return int(match[1]) if match else None


def room(path: Path, needed: int | None) -> str:
    """What a write needs and what there is, for a message."""
    free = f"{free_bytes(path):,} bytes are free there"
    return free if needed is None else f"{needed:,} bytes are needed, {free}"


def free_bytes(path: Path) -> int:
    """How many bytes may still be written at `path`, which needn't exist yet."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free
