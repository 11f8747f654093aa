"""Write files and folders whole or not at all: a crash leaves the old content or the new, never half of it."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from taskrecipe.errors import DiskFullError

Buffer = bytes | memoryview

NO_ROOM = {errno.ENOSPC: "disk full", errno.EDQUOT: "quota used up", errno.EFBIG: "file size limit reached"}


def replace(path: Path, data: bytes) -> None:
    """Write `data` to the file `path` in one step. Only one process may write there at a time."""
    temporary = path.with_name(f".{path.name}.tmp")
    with explain_full_disk(path, len(data)), remove_on_failure(temporary):
        temporary.unlink(missing_ok=True)  # left by a write that was killed
        write_new(temporary, [data])
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)


def write_new(path: Path, buffers: Iterable[Buffer]) -> None:
    """Write a file that must not exist yet. It is on disk only after `sync`."""
    with path.open("xb") as file:
        file.writelines(buffers)


@contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, and rename it to `path` at the end of the block.

    Several processes may do so at once: the first one's folder is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:16]}-{secrets.token_hex(8)}")
    temporary.mkdir()
    try:
        yield temporary
        rename_unless_there(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def rename_unless_there(temporary: Path, path: Path) -> None:
    """Rename a folder to `path`, unless another process was first: its folder is then kept."""
    try:
        temporary.rename(path)
    except OSError:
        if not path.is_dir():  # else another process was first, and its folder is as good
            raise


def sync_tree(path: Path) -> None:
    """Return when everything in this folder and below is on disk."""
    for folder, _, files in os.walk(path):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))


def sync(path: Path) -> None:
    """Return when this file's content, or this folder's list of names, is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def remove_on_failure(path: Path) -> Iterator[None]:
    """Remove the file or folder `path` if the block raises anything, a signal's exception included."""
    try:
        yield
    except BaseException:
        remove(path)
        raise


def remove(path: Path) -> None:
    """Delete a file or a folder. Whatever can't be deleted stays, and symbolic links are never followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


@contextmanager
def explain_full_disk(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn a full disk or quota into a `DiskFullError` that names the file and its size in bytes."""
    try:
        yield
    except Exception as error:
        number = _error_number(error)
        if number not in NO_ROOM:
            raise
        remedy = "raise it (ulimit -f)" if number == errno.EFBIG else "free some space"
        message = f"{NO_ROOM[number]} while writing {path}: {describe_room(path, needed)}; {remedy} and resume"
        raise DiskFullError(message) from error


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))  # how libraries written in Rust report it
    return int(match[1]) if match else None


def describe_room(path: Path, needed: int | None) -> str:
    """Say how many bytes a write needs and how many are free, for an error message."""
    free = f"{free_bytes(path):,} bytes are free there"
    return free if needed is None else f"{needed:,} bytes are needed, {free}"


def free_bytes(path: Path) -> int:
    """Count the bytes that can still be written at `path`, which needn't exist yet."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free
