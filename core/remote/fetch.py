"""Fetching a run from its mirror into a folder of this machine, to resume or to use it.

What makes the folder a run that can be resumed comes last: an interrupted fetch leaves one that is refused, or that is
as it was before. Fetching again goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock

from taskrecipe.checkpoints.checkpoint import Checkpoint
from taskrecipe.checkpoints.manifest import MANIFEST
from taskrecipe.checkpoints.store import Checkpoints, draft_path
from taskrecipe.errors import DamagedCheckpointError, UsageError
from taskrecipe.remote.filesystem import describe_failure, explain_remote_errors
from taskrecipe.remote.run_copy import read_remote_manifest
from taskrecipe.remote.storage import Storage
from taskrecipe.remote.urls import is_url, read_name
from taskrecipe.run.folder import RunFolder
from taskrecipe.run.folder_names import (
    CHECKPOINTS,
    FETCH_LOCK,
    LOG,
    MARKER,
    MODEL,
    PREDICTIONS,
    RUNS,
    SPEC,
    holds_run,
    require_run_name,
)
from taskrecipe.run.handle import Run
from taskrecipe.run.launchers import is_first
from taskrecipe.system import atomic_files

STATE = "state.json"
"""The file of a checkpoint that names the best one."""

_THREADS = 8
_TRIES = 3
"""The run may still be going on elsewhere, and remove a checkpoint that is being fetched."""


def fetch(url: str, out: str | Path | None = None) -> Run:
    """Copy a run from its mirror, such as s3://bucket/runs/mrpc, into `out` or runs/NAME, and return it.

    It has everything that is there. A folder that holds the same run already gets what it lacks.
    """
    path, _ = fetch_run(url, out)
    return Run(path)


def fetch_run(url: str, out: str | Path | None = None, *, to_resume: bool = False) -> tuple[Path, list[str]]:
    """Copy a run into a folder of this machine; return the folder, and what the user should know.

    With `to_resume`, only what is needed for that: the newest whole checkpoint, the best one, and no exported model.
    """
    if not is_url(url):
        raise UsageError(f"{url!r} is not a URL such as s3://bucket/runs/mrpc")
    target = choose_folder(url, out)
    with explain_remote_errors(url, "the run"):
        storage = Storage(url, "the run")
        marker = _read_marker(storage)
    target.mkdir(parents=True, exist_ok=True)
    with explain_remote_errors(url, "the run"), FileLock(target / FETCH_LOCK):
        if not is_first() and holds_run(target) and RunFolder.open(target).run_id == marker["id"]:
            return target, []  # the first of several processes fetches the run, or is training it already
        with RunFolder.adopt(target, {**marker, "mirror": url.rstrip("/")}) as folder:
            job = _Fetch(storage, folder)
            try:
                job.run(to_resume=to_resume)
            except BaseException:
                folder.discard()  # unless it holds something by now
                raise
    return target, list(dict.fromkeys(job.warnings))


def choose_folder(url: str, out: str | Path | None) -> Path:
    """Return the folder that a run is fetched into."""
    if out is not None:
        return Path(out)
    require_run_name(read_name(url))
    return RUNS / read_name(url)


def _read_marker(storage: Storage) -> dict[str, Any]:
    content = storage.read(MARKER)
    if content is None:
        runs = [name for name in storage.list_folders() if storage.inside(name).read(MARKER) is not None]
        there = f"; runs in it: {', '.join(runs[:10])}" if runs else ""
        raise UsageError(f"{storage.url} is not the copy of a run: it has no {MARKER}{there}")
    try:
        marker = dict(json.loads(content))
        return {**marker, "id": str(marker["id"])}
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{storage.url} can't be read as the copy of a run: its {MARKER} is damaged") from error


@dataclass
class _Fetch:
    """One run that is being fetched."""

    storage: Storage
    folder: RunFolder
    warnings: list[str] = field(default_factory=list)

    def run(self, *, to_resume: bool) -> None:
        checkpoints = self.folder.checkpoints
        checkpoints.mkdir(exist_ok=True)
        store = Checkpoints(checkpoints, keep=1, run_id=self.folder.run_id)
        store.recover()
        mine = store.newest(on_damage=self.warnings.append)
        newest = self._fetch_newest(mine.step if mine else -1)
        if newest is None and mine is None and to_resume:
            raise UsageError(f"{self.storage.url} has no checkpoint that is whole; start the run again from its spec")
        skipped = {MODEL, PREDICTIONS} if to_resume else set()
        self._fetch_files(skipped, replace=newest is not None)
        if newest is not None:
            self._place(newest)
        for name in [] if to_resume else self._list_steps():
            if not (checkpoints / name).is_dir():
                self._try_checkpoint(name)
        self._write_pointers(newest or mine)
        self._fetch_file(SPEC, replace=newest is not None)

    # Checkpoints -----------------------------------------------------------------------------------

    def _fetch_newest(self, mine: int) -> Checkpoint | None:
        """Fetch the best checkpoint into its place, and the newest one next to it; None if `mine` is as new."""
        for _ in range(_TRIES):
            names = [name for name in self._list_steps() if _step(name) > mine]
            for name in names:
                found = self._fetch_checkpoint(name)
                if found is not None:
                    self._fetch_best(found)
                    return found
            if not names:
                break
        return None

    def _list_steps(self) -> list[str]:
        """Return the names of the checkpoints at the mirror, the newest first."""
        names = [name for name in self.storage.list_folders(CHECKPOINTS) if _step(name) >= 0]
        return sorted(names, key=_step, reverse=True)

    def _fetch_best(self, checkpoint: Checkpoint) -> None:
        """Fetch the best checkpoint that another one names. If it is lost, resuming says so."""
        best = checkpoint.json(STATE)["progress"]["best"]
        if best and best["step"] != checkpoint.step:
            self._try_checkpoint(f"step-{best['step']}")

    def _try_checkpoint(self, name: str) -> None:
        found = self._fetch_checkpoint(name)
        if found is not None:
            self._place(found)

    def _fetch_checkpoint(self, name: str) -> Checkpoint | None:
        """Return a checkpoint that is intact, here or as a draft; None if it is not whole at the mirror."""
        manifest = read_remote_manifest(self.storage, name)
        if manifest is None or manifest.run_id != self.folder.run_id or f"step-{manifest.step}" != name:
            return None
        try:
            present = Checkpoint.read(self.folder.checkpoints / name)
            if present.manifest == manifest:
                present.verify()
                return present
        except DamagedCheckpointError:
            pass
        draft = draft_path(self.folder.checkpoints, self.folder.run_id, manifest.step)
        atomic_files.remove(draft)
        draft.mkdir()
        try:
            self._fetch_all({f"{CHECKPOINTS}/{name}/{file}": draft / file for file in manifest.files})
            atomic_files.write_new(draft / MANIFEST, [manifest.render()])
            checkpoint = Checkpoint.read(draft)
            checkpoint.verify()
        except (DamagedCheckpointError, FileNotFoundError) as error:
            atomic_files.remove(draft)
            what = str(error) if isinstance(error, DamagedCheckpointError) else describe_failure(error)
            self.warnings.append(f"checkpoint {name} of {self.storage.url} is not used: {what}")
            return None
        atomic_files.sync_tree(draft)
        return checkpoint

    def _place(self, checkpoint: Checkpoint) -> None:
        """Give a fetched checkpoint its name."""
        folder, target = self.folder.checkpoints, self.folder.checkpoints / f"step-{checkpoint.step}"
        if checkpoint.path == target:
            return
        if target.exists():  # damaged, or of another course of this run
            target.rename(folder / f".trash-{self.folder.run_id}-{target.name}-{time.time_ns()}")
        checkpoint.path.rename(target)
        atomic_files.sync(folder)

    def _write_pointers(self, newest: Checkpoint | None) -> None:
        folder = self.folder.checkpoints
        if newest is None:
            return
        best = Checkpoint.read(folder / f"step-{newest.step}").json(STATE)["progress"]["best"]
        for name, step in (("last", newest.step), ("best", best["step"] if best else None)):
            if step is not None and (folder / f"step-{step}").is_dir():
                atomic_files.replace(folder / name, f"step-{step}\n".encode())

    # Files -----------------------------------------------------------------------------------------

    def _fetch_files(self, skipped: set[str], *, replace: bool) -> None:
        """Fetch all other files but the spec. Those that are there stay, unless they are older than the checkpoint."""
        for name in self._list_files(skipped):
            self._fetch_file(name, replace=replace)

    def _list_files(self, skipped: set[str]) -> Iterator[str]:
        for name in self.storage.list_sizes():
            parts = PurePosixPath(name).parts
            hidden = any(part.startswith(".") for part in parts)  # also a part that leads out of the folder
            if not hidden and parts[0] not in {CHECKPOINTS, MARKER, SPEC, *skipped}:
                yield name

    def _fetch_file(self, name: str, *, replace: bool) -> None:
        target = self.folder.path / name
        if target.exists() and not replace:
            return
        temporary = target.with_name(f".{target.name}.tmp")
        try:
            self.storage.fetch(name, temporary)
            temporary.replace(target)
        except FileNotFoundError:
            if name in (SPEC, LOG):
                raise

    def _fetch_all(self, files: Mapping[str, Path]) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(self.storage.fetch, files.keys(), files.values()):
                pass


def _step(name: str) -> int:
    number = name.removeprefix("step-")
    return int(number) if name.startswith("step-") and number.isdigit() else -1
