"""A checkpoint on its way to the disk, in a folder whose name means nothing yet."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, Future, wait
from pathlib import Path
from typing import TypeVar

from taskrecipe.core import durable
from taskrecipe.core.checkpoints.manifest import NAME, FileRecord, Manifest
from taskrecipe.core.durable import Buffer

Result = TypeVar("Result")


class Draft:
    """Files that are first handed to the system, then sealed: on disk, with checksums in a manifest."""

    def __init__(self, folder: Path, threads: Executor) -> None:
        self.folder, self._threads = folder, threads
        self._synced: list[Future[None]] = []
        self._records: dict[str, Future[FileRecord]] = {}

    def write(self, files: Mapping[str, list[Buffer]]) -> None:
        """Hand all bytes to the system; the memory they come from is free to change after that."""
        with durable.removed_on_failure(self.folder):
            durable.remove(self.folder)  # of a run that was killed
            self.folder.mkdir()
            _results(self._threads.submit(durable.write_new, self.folder / name, files[name]) for name in files)
        # Asked for now and not in `seal`: a pool takes no more work from its own threads when the interpreter ends.
        self._synced = [self._threads.submit(durable.sync, self.folder / name) for name in files]
        self._records = {name: self._threads.submit(_record, self.folder / name) for name in files}

    def seal(self, run_id: str, step: int, spec_hash: str) -> Manifest:
        """Wait until the disk has every file, and add the manifest that says what they are."""
        with durable.removed_on_failure(self.folder):
            _results(self._synced)
            records = dict(zip(self._records, _results(self._records.values()), strict=True))
            manifest = Manifest(run_id, step, spec_hash, records)
            durable.write_new(self.folder / NAME, [manifest.render()])
            durable.sync(self.folder / NAME)
            durable.sync(self.folder)
        return manifest


def _results(tasks: Iterable[Future[Result]]) -> list[Result]:
    """Wait for all, so that none is still at work when one has failed."""
    started = list(tasks)
    wait(started)
    return [task.result() for task in started]


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileRecord(os.fstat(file.fileno()).st_size, digest)
