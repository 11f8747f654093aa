"""The checkpoints of a run. Each one is a commit: it is deleted only after a newer one is complete.

A commit is written into a draft folder, is synced to disk, and is then renamed to `step-N`. So every folder
called `step-N` is complete, whenever the process was killed. After that the pointers `last` and `best` move, and old
checkpoints are removed at the end: first renamed, then deleted. Only a folder that belongs to this run is ever deleted.

Training waits only while the bytes are given to the operating system. Other threads compute the checksums and wait
for the disk; the commit counts once they are done.

Where a model is sharded, every process writes the rows that it holds into the same draft. The main process creates the
draft, and seals it after all have reported that their files are on disk.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from taskrecipe.checkpoints.checkpoint import Checkpoint, find_checkpoint, list_steps
from taskrecipe.checkpoints.draft import Draft, Threads
from taskrecipe.checkpoints.manifest import MANIFEST, FileRecord, Manifest
from taskrecipe.checkpoints.safetensors_file import Tensors, encode_tensors
from taskrecipe.errors import DamagedCheckpointError, DiskFullError
from taskrecipe.system import atomic_files
from taskrecipe.system.atomic_files import Buffer

__all__ = ["Checkpoint", "Checkpoints", "Contents", "PartWriter", "draft_path"]

Contents = Mapping[str, bytes | Tensors]
"""A file's name to its bytes or its tensors."""

Records = dict[str, FileRecord]


class Writers(Protocol):
    """The processes that write checkpoints together. All of them must make the same calls in the same order."""

    def meet(self) -> None:
        """Return once every process has called this."""

    def exchange_records(self, records: Records) -> Records:
        """Return the records of all processes, once each has given its own."""


class Alone:
    """One process writes everything."""

    def meet(self) -> None:
        """Return: there is nobody to wait for."""

    def exchange_records(self, records: Records) -> Records:
        """Return the records: there are no others."""
        return records


class Committer:
    """Finishes a commit in the background, one at a time."""

    def __init__(self) -> None:
        self._threads = Threads()
        self._pending: Future[Checkpoint] | None = None

    def wait(self) -> None:
        """Wait for the commit that was begun, and raise its error if it failed."""
        self.drain()
        if self._pending is not None:
            checkpoint, self._pending = self._pending, None
            checkpoint.result()

    def drain(self) -> None:
        """Wait until nothing is being written any more. Errors are not raised."""
        if self._pending is not None:
            self._threads.is_awaited.set()
            futures.wait([self._pending])
            self._threads.is_awaited.clear()


class Checkpoints(Committer):
    """The checkpoints in one run's folder. `keep` is how many of the newest stay, besides the best.

    `constant` are files that are the same in every checkpoint. Only the process that holds the run's lock writes here;
    each of its `peers` has a `PartWriter`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        run_id: str,
        constant: Mapping[str, bytes] | None = None,
        peers: Writers | None = None,
    ) -> None:
        super().__init__()
        self.folder, self.keep, self.run_id, self.constant = folder, keep, run_id, dict(constant or {})
        self.peers: Writers = peers or Alone()
        self._draft_prefix, self._trash_prefix = _draft_prefix(run_id), f".trash-{run_id}-"
        self._recovered = False
        self._own: dict[str, tuple[int, int]] = {}
        """The checkpoints that were found to be this run's: the inode and modification time of their folder then."""

    def commit(self, step: int, contents: Contents, *, best: int | None) -> Checkpoint:
        """Save `contents` as the checkpoint of `step`, and return once it is on disk."""
        future = self.begin(step, contents, best=best)
        self.wait()
        return future.result()

    def begin(self, step: int, contents: Contents, *, best: int | None) -> Future[Checkpoint]:
        """Take `contents` as they are now for the checkpoint of `step`, and finish the commit in the background.

        `best` is the step of the best checkpoint so far. The failure of an earlier commit is raised here or in `wait`.
        """
        self.wait()
        files = {name: _as_buffers(content) for name, content in {**contents, **self.constant}.items()}
        size = sum(len(buffer) for buffers in files.values() for buffer in buffers)
        draft = Draft(draft_path(self.folder, self.run_id, step), self._threads)
        with atomic_files.explain_full_disk(self.folder / f"step-{step}", size):
            self.recover()
            draft.create()
            self.peers.meet()
            draft.write(files)
        self._pending = self._threads.finishing.submit(self._finish_commit, draft, step, best, size)
        return self._pending

    def newest(self, on_damage: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest checkpoint that verifies, to resume from. `on_damage` gets a message for each skipped one.

        It changes nothing on disk. A draft that was complete when the run was killed counts; `recover` renames it.
        """
        self.wait()
        for _, path in sorted([*list_steps(self.folder), *self._drafts()], reverse=True):
            try:
                checkpoint = Checkpoint.read(path)
                if checkpoint.manifest.run_id == self.run_id:
                    checkpoint.verify()
                    return checkpoint
                on_damage(f"{path} belongs to another run and is left alone")
            except DamagedCheckpointError as error:
                if not path.name.startswith("."):  # an incomplete draft is nothing unusual
                    on_damage(f"checkpoint {path.name} is damaged and not used: {error}")
        return None

    def at(self, name: str) -> Checkpoint:
        """Return the checkpoint called `name`: "best", "last", "step-12"."""
        self.wait()
        return find_checkpoint(self.folder, name)

    def require_space(self, checkpoint_bytes: int) -> None:
        """Raise `DiskFullError` now if not even one checkpoint of that size fits on the disk."""
        needed = checkpoint_bytes + checkpoint_bytes // 20 + 2**16  # for manifest, log and results
        if atomic_files.free_bytes(self.folder) < needed:
            space = atomic_files.describe_room(self.folder, needed)
            raise DiskFullError(f"no space for a checkpoint in {self.folder}: {space}")

    def recover(self, resumed: int | None = None, best: int | None = None) -> None:
        """Finish the commit of a killed run if its draft is complete, and delete its other drafts and trash.

        `resumed` is the step that the run goes on from. The kill may have come before `last` and `best` were moved.
        """
        if self._recovered:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for step, path in self._drafts():
            target = self.folder / f"step-{step}"
            if _verifies(path) and not os.path.lexists(target):
                path.rename(target)
            else:
                atomic_files.remove(path)
        self._empty_trash()
        if resumed is not None:
            with atomic_files.explain_full_disk(self.folder):
                self._move_pointers(resumed, best)
                newest = max((step for step, _ in list_steps(self.folder)), default=None)
                if newest == resumed:  # else the newest is damaged, and older ones may be needed
                    self._remove_old(protected={resumed, best})
        self._recovered = True

    # The steps of a commit --------------------------------------------------------------------------

    def _finish_commit(self, draft: Draft, step: int, best: int | None, size: int) -> Checkpoint:
        path = self.folder / f"step-{step}"
        with atomic_files.explain_full_disk(path, size):
            manifest = Manifest(self.run_id, step, self.peers.exchange_records(draft.records()))
            draft.seal(manifest)
            self._clear_name(path)
            draft.folder.rename(path)  # if the process dies before this, `recover` renames the complete draft
            atomic_files.sync(self.folder)
            self._move_pointers(step, best)
            self._remove_old(protected={step, best})
        return Checkpoint(path, manifest)

    def _clear_name(self, path: Path) -> None:
        """Move away what has the name of the new checkpoint: an earlier commit of that step, or a foreign file."""
        if self._owns(path):
            self._discard(path)
        elif os.path.lexists(path):
            free = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
            path.rename(next(name for name in free if not os.path.lexists(name)))

    def _move_pointers(self, step: int, best: int | None) -> None:
        self._move_pointer("last", step)
        self._move_pointer("best", best)

    def _move_pointer(self, pointer: str, step: int | None) -> None:
        """Write the checkpoint's name into a pointer file. It is relative, so that the run folder can be moved."""
        if step is not None and (self.folder / f"step-{step}").is_dir():
            atomic_files.replace(self.folder / pointer, f"step-{step}\n".encode())
        else:
            (self.folder / pointer).unlink(missing_ok=True)

    def _remove_old(self, protected: set[int | None]) -> None:
        own = [(step, path) for step, path in list_steps(self.folder) if self._is_known(path)]
        for step, path in own[: -self.keep]:
            if step not in protected and self._owns(path):
                self._discard(path)
                del self._own[path.name]
        self._empty_trash()

    def _discard(self, path: Path) -> None:
        """Rename a checkpoint to trash, which happens in one step; deleting a folder does not."""
        path.rename(self.folder / f"{self._trash_prefix}{path.name}-{time.time_ns()}")

    def _empty_trash(self) -> None:
        for path in self.folder.iterdir():
            if path.name.startswith(self._trash_prefix):
                atomic_files.remove(path)

    # What belongs to this run -----------------------------------------------------------------------

    def _is_known(self, path: Path) -> bool:
        """Whether a folder is this run's. Its manifest is read again only if the folder has changed."""
        about = path.lstat()
        now = (about.st_ino, about.st_mtime_ns)
        if self._own.get(path.name) != now:
            self._own.pop(path.name, None)
            if not self._owns(path):
                return False
            self._own[path.name] = now
        return True

    def _owns(self, path: Path) -> bool:
        """Whether a folder is this run's: its manifest says so, and it holds nothing else."""
        try:
            manifest = Checkpoint.read(path).manifest
        except DamagedCheckpointError:
            return False
        if path.is_symlink() or (manifest.run_id, f"step-{manifest.step}") != (self.run_id, path.name):
            return False
        expected = {*manifest.files, MANIFEST}
        with os.scandir(path) as entries:
            return all(entry.name in expected and entry.is_file(follow_symlinks=False) for entry in entries)

    def _drafts(self) -> list[tuple[int, Path]]:
        pattern = re.compile(re.escape(self._draft_prefix) + r"([0-9]+)")
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return [(int(match[1]), path) for path in paths if (match := pattern.fullmatch(path.name))]


class PartWriter(Committer):
    """Writes the files of a process that is not the main one into the drafts of the main process."""

    def __init__(self, folder: Path, *, run_id: str, peers: Writers) -> None:
        super().__init__()
        self.folder, self.run_id, self.peers = folder, run_id, peers

    def begin(self, step: int, contents: Contents, *, best: int | None) -> Future[Checkpoint]:
        """Take `contents` as they are now for the checkpoint of `step`, as `Checkpoints.begin` does."""
        self.wait()
        files = {name: _as_buffers(content) for name, content in contents.items()}
        draft = Draft(draft_path(self.folder, self.run_id, step), self._threads)
        with atomic_files.explain_full_disk(self.folder / f"step-{step}"):
            self.peers.meet()  # the main process has created the folder by then
            draft.write(files)
        self._pending = self._threads.finishing.submit(self._report, draft, step)
        return self._pending

    def _report(self, draft: Draft, step: int) -> Checkpoint:
        records = self.peers.exchange_records(draft.records())
        return Checkpoint(self.folder / f"step-{step}", Manifest(self.run_id, step, records))


def draft_path(folder: Path, run_id: str, step: int) -> Path:
    """Return where a run writes the checkpoint of a step before it is complete."""
    return folder / f"{_draft_prefix(run_id)}{step}"


def _draft_prefix(run_id: str) -> str:
    return f".tmp-{run_id}-"


def _as_buffers(content: bytes | Tensors) -> list[Buffer]:
    return [content] if isinstance(content, bytes) else encode_tensors(content)


def _verifies(path: Path) -> bool:
    try:
        Checkpoint.read(path).verify()
    except DamagedCheckpointError:
        return False
    return True
