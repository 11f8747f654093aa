"""A lock on a folder. The system frees it when the process that holds it ends, even after `kill -9`."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TypedDict

import psutil
from filelock import FileLock, Timeout

from taskrecipe.errors import UsageError

LOCK = ".lock"
"""The file that is locked. It stays in the folder; only the system's lock on it counts."""
HOLDER = ".lock-holder.json"
"""Names the process that holds the lock. It is a file of its own because Windows lets nobody read a locked file."""

CLOCK_ERROR = 60.0
"""Seconds by which the start of a process may seem to be later than it was, where the clock was set."""

PATIENCE = 5.0
"""Seconds to wait for a killed process that has not quite ended and still holds the lock."""


class Holder(TypedDict):
    """The process that holds a lock."""

    pid: int
    host: str
    since: str


class FolderLock:
    """An advisory lock on a folder. Forked children, such as data workers, don't hold it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Not bound to a thread: the thread that closes a run may be another than the one that began it.
        self._lock = FileLock(folder / LOCK, thread_local=False)

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock."""
        return self._lock.is_locked

    def acquire(self) -> None:
        """Take the lock, or raise `UsageError` that names the process that holds it."""
        if self.is_held:
            return
        deadline = time.monotonic() + PATIENCE
        while not self._try():
            holder = _read_holder(self.folder)
            if _is_alive(holder) or time.monotonic() > deadline:
                raise UsageError(f"{self.folder} is in use by {_describe(holder)}: two runs can't share a folder")
            time.sleep(0.02)
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        _write_holder(self.folder, {"pid": os.getpid(), "host": socket.gethostname(), "since": since})

    def release(self) -> None:
        """Free the lock."""
        if self.is_held:
            (self.folder / HOLDER).unlink(missing_ok=True)
            self._lock.release()

    def _try(self) -> bool:
        with suppress(Timeout):
            self._lock.acquire(blocking=False)
        return self.is_held


def is_locked(folder: Path) -> bool:
    """Whether a process on any machine holds a folder's lock, as the file system says it: the lock is tried."""
    if not (folder / LOCK).exists():
        return False
    lock = FolderLock(folder)
    taken = lock._try()
    if taken:
        lock._lock.release()
    return not taken


def find_live_holder(folder: Path) -> Holder | None:
    """Return the process that holds a folder's lock; None if there is none. The lock itself is not touched."""
    holder = _read_holder(folder)
    return holder if holder is not None and _is_alive(holder) and not _is_successor(holder) else None


def _is_successor(holder: Holder) -> bool:
    """Whether the process of that number is a later one, or has ended and only waits to be collected."""
    if holder["host"] != socket.gethostname():
        return False
    try:
        process = psutil.Process(holder["pid"])
        since = datetime.fromisoformat(holder["since"]).timestamp()
        return process.status() == psutil.STATUS_ZOMBIE or process.create_time() > since + CLOCK_ERROR
    except (psutil.Error, ValueError):
        return False


def _write_holder(folder: Path, holder: Holder) -> None:
    # In one step, so that nobody reads half a name.
    temporary = folder / f"{HOLDER}.tmp"
    temporary.write_text(json.dumps(holder))
    temporary.replace(folder / HOLDER)


def _read_holder(folder: Path) -> Holder | None:
    """Return who holds the lock; None if a process took it but has not written its name yet."""
    try:
        holder = json.loads((folder / HOLDER).read_bytes())
        return {"pid": int(holder["pid"]), "host": str(holder["host"]), "since": str(holder["since"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_alive(holder: Holder | None) -> bool:
    if holder is None:
        return False
    # A process on another machine can't be checked from here, so it counts as alive.
    return holder["host"] != socket.gethostname() or _is_running(holder["pid"])


def _is_running(pid: int) -> bool:
    """Whether a process of this machine is there, and has not ended without its parent's notice."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:  # it is someone else's
        return True


def _describe(holder: Holder | None) -> str:
    return "process {pid} on {host} since {since}".format(**holder) if holder else "another process"
