"""The folder of a sweep: `base.toml`, `journal.log`, `sweep.json`, `best.toml`, `report.html`, one folder for each run.

`.state/` holds what sweepers need to know of one another: a lock for planning, and for each run a folder with the lock
of the process that trains it, what that process has printed, and why it failed.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from taskrecipe.errors import UsageError
from taskrecipe.run import folder_names
from taskrecipe.run.lock import FolderLock, find_live_holder, is_locked
from taskrecipe.system import atomic_files
from taskrecipe.system.secrets import redact_spec, to_json

BASE = "base.toml"
"""The spec that every trial starts from: what the sweep's file says, as it was when the sweep began."""
JOURNAL = "journal.log"
"""Optuna's record of trials, which its own tools can open."""
SWEEP = "sweep.json"
BEST = "best.toml"
REPORT = "report.html"
STATE = ".state"
PLAN = "plan.json"
"""In `.state`: what the sweep is about, to notice that it has changed."""
FAILED = "failed.json"
OUTPUT = "output.log"
WARM = "warm.log"
MODULES = "modules.json"
SWEEPER, SWEEPERS = "sweeper", "sweepers"
"""In the state of a run: the sweeper that started it. In `.state`: a folder for each sweeper, locked while it lives."""

PATIENCE = 120.0
"""Seconds to wait for another sweeper that plans. It takes far less, unless its machine hangs."""


class SweepFolder:
    """The files of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = path / STATE
        self.base, self.journal = path / BASE, path / JOURNAL

    @classmethod
    def create(cls, path: Path) -> SweepFolder:
        """Make the folder, or find the sweep that is in it. A folder with other content is refused."""
        path = folder_names.resolve_out(path)
        folder = cls(path)
        if path.exists() and not folder.state.exists() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty and holds no sweep; name a new folder by --out")
        try:
            folder.state.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"can't make the folder {path}: {error.strerror or error}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> SweepFolder:
        """Open a sweep that is there."""
        folder = cls(path)
        if not (folder.state / PLAN).exists():
            raise UsageError(f"{path} holds no sweep")
        return folder

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Let one sweeper at a time decide, on all machines. The system frees the lock if its process dies."""
        lock = FileLock(self.state / "planning.lock", timeout=PATIENCE)
        try:
            lock.acquire()
        except Timeout:
            raise UsageError(f"another sweeper holds {lock.lock_file} for more than {PATIENCE:g} seconds") from None
        try:
            yield
        finally:
            lock.release()

    def run(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.path / name

    # What sweepers know of runs ---------------------------------------------------------------------

    def claim(self, name: str) -> FolderLock:
        """Return the lock that the process which trains a run holds."""
        folder = self.state / name
        folder.mkdir(exist_ok=True)
        return FolderLock(folder)

    def is_claimed(self, name: str) -> bool:
        """Whether a process on any machine trains a run now."""
        return is_locked(self.state / name) or is_locked(self.run(name))

    def find_orphan(self, name: str) -> int | None:
        """Return the process of this machine that trains a run though the sweeper which started it is gone."""
        try:
            sweeper = (self.state / name / SWEEPER).read_text()
        except OSError:
            return None
        holder = find_live_holder(self.state / name)
        if holder is None or holder["host"] != socket.gethostname() or is_locked(self.state / SWEEPERS / sweeper):
            return None
        return holder["pid"]

    def register_sweeper(self) -> FolderLock:
        """Take a lock that lasts as long as this process. The name of its folder stands for this sweeper."""
        folder = self.state / SWEEPERS / f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        lock = FolderLock(folder)
        lock.acquire()
        return lock

    def output(self, name: str) -> Path:
        """Return the file that takes what a run prints."""
        return self.state / name / OUTPUT

    def record_failure(self, name: str, failure: Mapping[str, Any]) -> None:
        """Keep why a run failed."""
        (self.state / name).mkdir(exist_ok=True)
        atomic_files.replace(self.state / name / FAILED, to_json(dict(failure)).encode(errors="backslashreplace"))

    def read_failure(self, name: str) -> dict[str, Any] | None:
        """Return why a run failed; None if it did not."""
        return _read_json(self.state / name / FAILED)

    def forget_failure(self, name: str) -> None:
        """Let a run that has failed be tried again."""
        (self.state / name / FAILED).unlink(missing_ok=True)

    def forget_failures(self) -> None:
        """Let all runs that have failed be tried again."""
        for record in self.state.glob(f"*/{FAILED}"):
            record.unlink(missing_ok=True)

    # Files ------------------------------------------------------------------------------------------

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read a JSON file of the sweep, such as `.state/plan.json`; None if there is none."""
        return _read_json(self.path / name)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file in one step."""
        atomic_files.replace(self.path / name, (to_json(value, indent=2) + "\n").encode(errors="backslashreplace"))

    def write_text(self, name: str, text: str) -> None:
        """Write a spec in one step, without secrets."""
        atomic_files.replace(self.path / name, redact_spec(text).encode(errors="backslashreplace"))


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return what changes whenever a file is written, without reading it; None if it is not there."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
