"""A lock on a folder that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from datetime import datetime
from pathlib import Path

from taskrecipe.core.errors import UsageError

_held: set[int] = set()


def _let_go() -> None:
    """Close what a forked child inherits: a data worker that outlives a killed run must not hold its lock."""
    for file in _held:
        os.close(file)
    _held.clear()


os.register_at_fork(after_in_child=_let_go)


class FolderLock:
    """An advisory lock by a file in the folder; the file stays, only the system's lock on it counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, or say who has it; one that was left by a killed process is free."""
        if self._file is not None:
            return
        file = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(file)
            os.close(file)
            raise UsageError(f"{self.folder} is in use by {holder}: two runs can't share a folder") from None
        _held.add(file)
        self._file = file
        _write(file, {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()})

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
            _held.discard(self._file)
            os.close(self._file)
            self._file = None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _write(file: int, record: dict[str, object]) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(record).encode(), 0)


def _holder(file: int) -> str:
    for _ in range(20):  # it may have the lock already and be about to write its name
        try:
            record = json.loads(os.pread(file, 4096, 0))
            return f"process {record['pid']} on {record['host']} since {record['since']}"
        except (ValueError, KeyError, TypeError):
            time.sleep(0.01)
    return "another process"
