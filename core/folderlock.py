"""A lock on a folder that ends with the process that holds it, however that ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from taskrecipe.core.errors import UsageError

LOCK = ".lock"
"""The name of the file."""

PATIENCE = 5.0
"""Seconds for what is left of a killed process to end, if it is that which has the lock."""

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
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        deadline = time.monotonic() + PATIENCE
        while not _locked(file):
            holder = _read(file)
            if _is_alive(holder) or time.monotonic() > deadline:
                os.close(file)
                raise UsageError(f"{self.folder} is in use by {_shown(holder)}: two runs can't share a folder")
            time.sleep(0.02)
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


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _write(file: int, holder: dict[str, Any]) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(holder).encode(), 0)


def _read(file: int) -> dict[str, Any] | None:
    """Who has written its name; None if that is only about to be done."""
    try:
        holder = json.loads(os.pread(file, 4096, 0))
        return {"pid": int(holder["pid"]), "host": str(holder["host"]), "since": str(holder["since"])}
    except (ValueError, KeyError, TypeError):
        return None


def _is_alive(holder: dict[str, Any] | None) -> bool:
    if holder is None:
        return False
    if holder["host"] != socket.gethostname():
        return True  # as far as can be known here
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _shown(holder: dict[str, Any] | None) -> str:
    return "process {pid} on {host} since {since}".format(**holder) if holder else "another process"
