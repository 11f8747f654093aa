"""The checkpoints of a run: each one a commit, kept until a later one has taken its place.

A commit is written beside the others under a name that means nothing, reaches the disk whole, and is renamed then.
So whatever is called `step-N` is complete, whenever the process was killed. Pointers move after that, and old
checkpoints go last: renamed first, then deleted. Only a folder that proves to be this run's own is ever deleted.

Training stands still only while the bytes are handed to the system. Checksums are taken, and the disk is waited for,
in other threads; the commit counts once they are done.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from taskrecipe.core import durable
from taskrecipe.core.checkpoints import manifest as manifests
from taskrecipe.core.checkpoints import tensorfile
from taskrecipe.core.checkpoints.checkpoint import Checkpoint, find, steps
from taskrecipe.core.checkpoints.draft import Draft
from taskrecipe.core.checkpoints.manifest import DamagedCheckpointError
from taskrecipe.core.durable import Buffer
from taskrecipe.core.errors import DiskFullError

if TYPE_CHECKING:
    import torch

__all__ = ["Checkpoint", "Checkpoints", "Contents"]

Contents = Mapping[str, "bytes | Mapping[str, torch.Tensor]"]
"""A file's name to its bytes or its tensors."""


class Checkpoints:
    """The checkpoints in one run's folder; `keep` is how many of the newest stay, besides the best.

    One process writes at a time, the one that holds the run folder's lock.
    """

    def __init__(self, folder: Path, *, keep: int, run_id: str, spec_hash: str) -> None:
        self.folder, self.keep, self.run_id, self.spec_hash = folder, keep, run_id, spec_hash
        self._temporary, self._trash = f".tmp-{run_id}-", f".trash-{run_id}-"
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="checkpoint")
        self._pending: Future[Checkpoint] | None = None
        self._settled = False

    def commit(self, step: int, contents: Contents, *, best: int | None) -> Checkpoint:
        """Save `contents` as the checkpoint of `step`, and return once the disk has it."""
        future = self.begin(step, contents, best=best)
        self.wait()
        return future.result()

    def begin(self, step: int, contents: Contents, *, best: int | None) -> Future[Checkpoint]:
        """Take `contents` as they are now for the checkpoint of `step`; what remains goes on beside the training.

        `best` is the step of the best checkpoint so far. A failure of an earlier one is raised here, or by `wait`.
        """
        self.wait()
        files = {name: _buffers(content) for name, content in contents.items()}
        size = sum(len(buffer) for buffers in files.values() for buffer in buffers)
        draft = Draft(self.folder / f"{self._temporary}{step}", self._threads)
        with durable.naming_full_disk(self.folder / f"step-{step}", size):
            self._settle()
            draft.write(files)
        self._pending = self._threads.submit(self._finish, draft, step, best, size)
        return self._pending

    def wait(self) -> None:
        """Return once the checkpoint that was begun is committed; raises what went wrong with it."""
        if self._pending is not None:
            [checkpoint], self._pending = futures.wait([self._pending]).done, None
            checkpoint.result()

    def rest(self) -> None:
        """Return once nothing is being written any more, however that went."""
        if self._pending is not None:
            futures.wait([self._pending])

    def newest(self, on_damage: Callable[[str], None]) -> Checkpoint | None:
        """The newest that verifies, to resume from; `on_damage` is told about each one that is passed over."""
        self.wait()
        self._settle()
        for _, path in reversed(steps(self.folder)):
            try:
                checkpoint = Checkpoint.read(path)
                if checkpoint.manifest.run_id == self.run_id:
                    checkpoint.verify()
                    return checkpoint
                on_damage(f"{path} belongs to another run; it is left alone")
            except DamagedCheckpointError as error:
                on_damage(f"checkpoint {path.name} is damaged and not used: {error}")
        return None

    def at(self, name: str) -> Checkpoint:
        """The checkpoint called `name`: "best", "last", "step-12"."""
        self.wait()
        return find(self.folder, name)

    def foresee(self, checkpoint_bytes: int) -> None:
        """Raise `DiskFullError` now if not even one checkpoint of that size will fit."""
        needed = checkpoint_bytes + checkpoint_bytes // 20 + 2**16  # for manifest, log and results
        if durable.free_bytes(self.folder) < needed:
            raise DiskFullError(f"no room for a checkpoint in {self.folder}: {durable.room(self.folder, needed)}")

    # A commit, step by step -------------------------------------------------------------------------

    def _finish(self, draft: Draft, step: int, best: int | None, size: int) -> Checkpoint:
        path = self.folder / f"step-{step}"
        with durable.naming_full_disk(path, size):
            manifest = draft.seal(self.run_id, step, self.spec_hash)
            self._clear_way(path)
            draft.folder.rename(path)  # if it doesn't come to this, the folder is complete, and `_settle` renames it
            durable.sync(self.folder)
            self._point("last", step)
            self._point("best", best)
            self._prune(protected={step, best})
        return Checkpoint(path, manifest)

    def _clear_way(self, path: Path) -> None:
        """Move what has the name of the new checkpoint: a former commit of that step, or something foreign."""
        if self._owns(path):
            self._discard(path)
        elif os.path.lexists(path):
            asides = (path.with_name(f"{path.name}.aside-{number}") for number in itertools.count(1))
            path.rename(next(aside for aside in asides if not os.path.lexists(aside)))

    def _point(self, pointer: str, step: int | None) -> None:
        """Let `pointer` name a checkpoint relative to itself, so that the run folder can be moved."""
        if step is not None and (self.folder / f"step-{step}").is_dir():
            durable.replace(self.folder / pointer, f"step-{step}\n".encode())
        else:
            (self.folder / pointer).unlink(missing_ok=True)

    def _prune(self, protected: set[int | None]) -> None:
        own = [(step, path) for step, path in steps(self.folder) if self._owns(path)]
        for step, path in own[: -self.keep]:
            if step not in protected:
                self._discard(path)
        self._empty_trash()

    def _discard(self, path: Path) -> None:
        """Take its name from a checkpoint, which is done in one step, as deleting it is not."""
        path.rename(self.folder / f"{self._trash}{path.name}-{time.time_ns()}")

    def _empty_trash(self) -> None:
        for path in self._named(self._trash):
            durable.remove(path)

    def _settle(self) -> None:
        """Finish the commit that a killed run had written whole, and clear away what else it left."""
        if self._settled:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self._named(self._temporary):
            target = self.folder / f"step-{path.name.removeprefix(self._temporary)}"
            if _verifies(path) and not os.path.lexists(target):
                path.rename(target)
            else:
                durable.remove(path)
        self._empty_trash()
        self._settled = True

    # Whose is what ----------------------------------------------------------------------------------

    def _owns(self, path: Path) -> bool:
        """Whether a folder is this run's: its manifest says so, and nothing else lies in it."""
        try:
            manifest = Checkpoint.read(path).manifest
        except DamagedCheckpointError:
            return False
        if path.is_symlink() or (manifest.run_id, f"step-{manifest.step}") != (self.run_id, path.name):
            return False
        expected = {*manifest.files, manifests.NAME}
        with os.scandir(path) as entries:
            return all(entry.name in expected and entry.is_file(follow_symlinks=False) for entry in entries)

    def _named(self, prefix: str) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.name.startswith(prefix)]


def _buffers(content: bytes | Mapping[str, torch.Tensor]) -> list[Buffer]:
    return [content] if isinstance(content, bytes) else tensorfile.encode(content)


def _verifies(path: Path) -> bool:
    try:
        Checkpoint.read(path).verify()
    except DamagedCheckpointError:
        return False
    return True
