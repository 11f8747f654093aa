"""The folder on this machine where rows and digests are cached, and the temporary folders in it."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from taskrecipe.errors import UsageError

PREFIX, MARK = ".taskrecipe-tmp-", ".taskrecipe-temporary"
"""How the names of temporary folders start, and the file in them without which none is ever deleted as a leftover."""

_DAY = 24 * 60 * 60


def find_cache_folder() -> Path:
    """Return the cache's folder, and make it if it is missing. What a killed process left is deleted after a day."""
    root = Path(os.environ.get("TASKRECIPE_CACHE") or Path.home() / ".cache" / "taskrecipe").expanduser()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"no cache can be kept in '{root}' ({error.strerror}); set TASKRECIPE_CACHE") from error
    for folder in root.glob(f"{PREFIX}*"):
        if _is_leftover(folder):
            shutil.rmtree(folder, ignore_errors=True)
    return root


def make_temporary_folder(root: Path) -> Path:
    """Make a folder in `root` that is deleted after a day if this process doesn't live to delete it."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
    (folder / MARK).touch()
    return folder


@contextmanager
def temporary_folder(root: Path) -> Iterator[Path]:
    """Yield a new folder in `root`, and delete it at the end of the block."""
    folder = make_temporary_folder(root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_leftover(folder: Path) -> bool:
    """Whether a folder carries our mark and nothing in it has changed for a day."""
    try:
        if folder.is_symlink() or not (folder / MARK).is_file():
            return False
        changed = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
    except OSError:  # another process is deleting it
        return False
    return changed < time.time() - _DAY
