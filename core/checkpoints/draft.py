"""A checkpoint that is being written, in a folder that is not a checkpoint yet."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from typing import TypeVar

from taskrecipe.checkpoints.manifest import MANIFEST, FileRecord, Manifest
from taskrecipe.system import atomic_files
from taskrecipe.system.atomic_files import Buffer
from taskrecipe.system.thread_priority import give_way

Result = TypeVar("Result")
THREADS = 8

CHUNK, PAUSE = 2**21, 0.006
"""A checksum reads this many bytes at a time, which takes about a millisecond, and then pauses for so many seconds.

Without pauses the system may leave a core to it for all its time, and put the threads of training on the other ones.
"""


class Threads:
    """The threads that training waits for while they write, and those that finish a commit while it goes on."""

    def __init__(self) -> None:
        self.writing = ThreadPoolExecutor(THREADS, thread_name_prefix="checkpoint")
        self.finishing = ThreadPoolExecutor(THREADS, thread_name_prefix="checkpoint", initializer=give_way)
        self.is_awaited = Event()
        """Set while somebody waits for the commit: nothing needs to give way then."""


class Draft:
    """Files that are first given to the operating system; `seal` adds the manifest once they are on disk.

    Several processes may write into one folder: the main one creates and seals it.
    """

    def __init__(self, folder: Path, threads: Threads) -> None:
        self.folder, self._threads = folder, threads
        self._synced: list[Future[None]] = []
        self._records: dict[str, Future[FileRecord]] = {}

    def create(self) -> None:
        """Make the folder. What a run that was killed has left there is removed."""
        atomic_files.remove(self.folder)
        self.folder.mkdir()

    def write(self, files: Mapping[str, list[Buffer]]) -> None:
        """Give all bytes to the operating system. Afterwards the memory they come from may change."""
        with atomic_files.remove_on_failure(self.folder):
            _wait_for_results(
                self._threads.writing.submit(atomic_files.write_new, self.folder / name, files[name]) for name in files
            )
        # Submitted now and not in `records`: a pool accepts no work from its own threads while the interpreter exits.
        self._synced = [self._threads.finishing.submit(atomic_files.sync, self.folder / name) for name in files]
        self._records = {name: self._threads.finishing.submit(self._read_record, name) for name in files}

    def records(self) -> dict[str, FileRecord]:
        """Wait until every file that was written here is on disk, and return their sizes and checksums."""
        with atomic_files.remove_on_failure(self.folder):
            _wait_for_results(self._synced)
            return dict(zip(self._records, _wait_for_results(self._records.values()), strict=True))

    def seal(self, manifest: Manifest) -> None:
        """Add the manifest, once every file in it is on disk."""
        with atomic_files.remove_on_failure(self.folder):
            atomic_files.write_new(self.folder / MANIFEST, [manifest.render()])
            atomic_files.sync(self.folder / MANIFEST)
            atomic_files.sync(self.folder)

    def _read_record(self, name: str) -> FileRecord:
        with (self.folder / name).open("rb", buffering=0) as file:
            size, digest = os.fstat(file.fileno()).st_size, hashlib.sha256()
            chunk = memoryview(bytearray(min(size, CHUNK)))
            while count := file.readinto(chunk):
                digest.update(chunk[:count])
                if file.tell() < size:
                    self._threads.is_awaited.wait(PAUSE)
        return FileRecord(size, digest.hexdigest())


def _wait_for_results(tasks: Iterable[Future[Result]]) -> list[Result]:
    """Wait for all tasks, so that none is still running when one has failed."""
    started = list(tasks)
    wait(started)
    return [task.result() for task in started]
