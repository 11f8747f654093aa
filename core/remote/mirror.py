"""`[checkpoint].mirror`: a run's folder is copied to a URL by a background thread. Training never waits for it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from taskrecipe.remote.filesystem import describe_failure
from taskrecipe.remote.run_copy import RunCopy, read_owner
from taskrecipe.remote.storage import Storage
from taskrecipe.remote.urls import join_url, read_protocol
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import MARKER, RESULTS
from taskrecipe.system.secrets import redact
from taskrecipe.system.thread_priority import give_way

KEY = "[checkpoint].mirror"
PAUSES = (1.0, 3.0, 0.0)
"""Seconds after each try to copy the rest of a run that has ended."""


class Mirror:
    """Keeps a copy of a run's folder below `url`, in a folder of the run's name.

    An error is a warning, once for each kind of error; the copy is tried again after the next checkpoint.
    """

    def __init__(self, folder: RunFolder, url: str) -> None:
        self.folder, self.root = folder, url
        self._copy: RunCopy | None = None
        self._wanted, self._closing = threading.Event(), False
        self._warnings: list[str] = []
        self._known: set[str] = set()
        self._error: str | None = None
        self.is_complete = False
        """Whether the whole folder is there, its results included."""
        # A daemon: a place that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)

    @property
    def url(self) -> str:
        """Where the copy is."""
        return self._copy.storage.url if self._copy else join_url(self.root, self.folder.name)

    def start(self) -> None:
        """Start copying, with what is in the folder by now."""
        self._thread.start()
        self.update()

    def update(self) -> None:
        """Let the thread copy what is new. It returns at once."""
        self._wanted.set()

    def take_warnings(self) -> list[str]:
        """Return the warnings that have come since the last call."""
        taken, self._warnings = self._warnings, []
        return taken

    def close(self) -> None:
        """Let the thread copy the rest, add to results.json how that went, and end."""
        self._closing = True
        self.update()

    @property
    def error(self) -> str:
        """What was in the way the last time."""
        return self._error or ""

    def wait(self, seconds: float) -> bool:
        """Wait for the thread to end, at most for some seconds; return whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Record that the copy is not complete, without waiting for it any longer."""
        self._error = self._error or "was not waited for"
        self.record(self._describe())

    def record(self, state: dict[str, Any]) -> None:
        """Add the state of the copy to results.json."""
        if (self.folder.path / RESULTS).exists():
            self.folder.write_json(RESULTS, {**self.folder.read_json(RESULTS), "mirror": state})

    def _describe(self) -> dict[str, Any]:
        """Return what results.json says about the copy."""
        about = {"url": redact(self.url), "complete": self.is_complete}
        about["checkpoint"] = self._copy.newest if self._copy else None
        return {**about, "error": self._error} if self._error else about

    # In the thread of the mirror -------------------------------------------------------------------

    def _work(self) -> None:
        give_way()
        closing = False
        while not closing:
            self._wanted.wait()
            self._wanted.clear()
            closing = self._closing
            if not closing:
                self._try(self._copy_run)
        for pause in PAUSES:
            if self._try(self._copy_run) and self._try(self._seal):
                return
            time.sleep(pause)
        self.record(self._describe())

    def _try(self, step: Callable[[], None]) -> bool:
        try:
            step()
        except Exception as error:
            self._error = redact(describe_failure(error))
            kind = type(error).__name__
            if kind not in self._known:
                self._known.add(kind)
                advice = "training goes on, and copying is tried again after the next checkpoint"
                self._warnings.append(f"{KEY}: {redact(self.url)!r} {self._error}; {advice}")
            return False
        self._error = None
        return True

    def _copy_run(self) -> None:
        if self._copy is None or read_owner(self._copy.storage) != self.folder.run_id:
            storage = self._find_place()
            self.folder.record_mirror(storage.url)
            self._copy = RunCopy(self.folder.path, self.folder.run_id, storage)
        self._copy.update()

    def _seal(self) -> None:
        """Copy results.json as the last file: it says that the copy is complete."""
        if self._copy is not None:
            self._copy.finish()
            self.record({**self._describe(), "complete": True})
            self._copy.copy_results()
            self.is_complete = True

    def _find_place(self) -> Storage:
        """Return the folder of this run at the mirror: the former one, or the first that is free or this run's."""
        former = self.folder.read_json(MARKER).get("mirror")
        if former and former.rpartition("/")[0] == self.root.rstrip("/"):
            storage = Storage(former, KEY)
            if self._is_free(storage):
                return storage
        names = (f"{self.folder.name}-{number}" for number in itertools.count(2))
        for name in itertools.chain([self.folder.name], names):
            storage = Storage(join_url(self.root, name), KEY)
            if self._is_free(storage):
                return storage
        raise AssertionError("there is always a next number")

    def _is_free(self, storage: Storage) -> bool:
        """Whether a folder is this run's, or holds nothing but what a copy that failed at once has left."""
        owner = read_owner(storage)
        if owner is not None:
            return owner == self.folder.run_id
        return all(name.rpartition("/")[2].startswith(".") for name in storage.list_sizes())


def is_own_folder(folder: RunFolder, url: str) -> bool:
    """Whether a mirror would be a run's own folder, or inside it."""
    if read_protocol(url) not in ("file", "local"):
        return False
    own, place = folder.path.resolve(), Path(url.partition("://")[2], folder.name).resolve()
    return place == own or own in place.parents
