"""The copy of a run's folder at a URL, and how it is brought up to date.

At every moment the copy can be resumed from. Files that a checkpoint needs are copied before its manifest, so a
checkpoint without a valid manifest is none. The best checkpoint is copied before the last one, which names it. What
this machine has removed is removed there only once the newer ones are whole, the manifest first.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from taskrecipe.checkpoints.checkpoint import list_steps
from taskrecipe.checkpoints.manifest import MANIFEST, Manifest, parse_manifest, read_manifest
from taskrecipe.errors import DamagedCheckpointError
from taskrecipe.remote.storage import Storage
from taskrecipe.run.folder_names import CHECKPOINTS, LOG, MARKER, MODEL, RESULTS

POINTERS = ("best", "last")
LONGEST_LINE = 2**20

Stamp = tuple[int, int, int]
"""Size, modification time and inode of a file."""


@dataclass
class _Opened:
    """A checkpoint whose files are held open: they can be copied even if the run removes it meanwhile."""

    name: str
    manifest: Manifest
    files: dict[str, BinaryIO]


class RunCopy:
    """Copies a run's folder to `storage`, as far as it has changed since the last time."""

    def __init__(self, folder: Path, run_id: str, storage: Storage) -> None:
        self.folder, self.run_id, self.storage = folder, run_id, storage
        self._copied: dict[str, Stamp] = {}
        self._whole: dict[str, Manifest] | None = None
        """The checkpoints that are whole at the other place; None if that is to be found out."""

    @property
    def newest(self) -> str | None:
        """The name of the newest checkpoint that is whole at the other place."""
        return max(self._whole or {}, key=_step, default=None)

    def update(self) -> None:
        """Copy what is new, and remove what is gone. After an error it can be called again."""
        try:
            if self._whole is None:
                self._whole = self._find_whole()
            self._copy_files()
            local = self._copy_checkpoints(self._whole)
            self._copy_pointers()
            self._remove_old(self._whole, local)
        except BaseException:
            self._whole = None
            raise

    def finish(self) -> None:
        """Remove what an earlier export has left there."""
        local = {name for name, _ in self._list_files()}
        for name in self.storage.list_sizes(MODEL) if (self.folder / MODEL).is_dir() else ():
            if name not in local:
                self.storage.remove(name)

    def copy_results(self) -> None:
        """Copy results.json, which says that everything else is there."""
        if (self.folder / RESULTS).exists():
            self._copy_file(RESULTS, self.folder / RESULTS)

    # Files -----------------------------------------------------------------------------------------

    def _copy_files(self) -> None:
        """Copy all files but checkpoints and results: the marker first, which says whose copy it is."""
        files = dict(self._list_files())
        for name in sorted(files, key=lambda name: (name != MARKER, "/" in name, name)):
            if name != RESULTS:
                self._copy_file(name, files[name])

    def _list_files(self) -> Iterator[tuple[str, Path]]:
        for root, folders, names in os.walk(self.folder):
            left_out = {CHECKPOINTS} if root == str(self.folder) else set()
            folders[:] = [name for name in folders if name[0] != "." and name not in left_out]
            for name in names:
                path = Path(root, name)
                if name[0] != "." and path.is_file() and not path.is_symlink():
                    yield path.relative_to(self.folder).as_posix(), path

    def _copy_file(self, name: str, path: Path) -> None:
        try:
            with path.open("rb") as file:
                about = os.fstat(file.fileno())
                stamp = about.st_size, about.st_mtime_ns, about.st_ino
                if self._copied.get(name) != stamp:
                    self.storage.replace(name, _WholeLines(file) if name == LOG else file)
                    self._copied[name] = stamp
        except FileNotFoundError:
            if path.exists():  # it is the other place that lacks something
                raise

    def _copy_pointers(self) -> None:
        for name in POINTERS:
            path = self.folder / CHECKPOINTS / name
            if path.exists():
                self._copy_file(f"{CHECKPOINTS}/{name}", path)
            else:
                self.storage.remove(f"{CHECKPOINTS}/{name}")

    # Checkpoints -----------------------------------------------------------------------------------

    def _find_whole(self) -> dict[str, Manifest]:
        """Return the checkpoints of this run that are whole at the other place."""
        names = [name for name in self.storage.list_folders(CHECKPOINTS) if name.startswith("step-")]
        manifests = {name: read_remote_manifest(self.storage, name) for name in names}
        return {name: found for name, found in manifests.items() if found and found.run_id == self.run_id}

    def _copy_checkpoints(self, whole: dict[str, Manifest]) -> set[str]:
        """Copy the checkpoints that are missing, the most important ones first; return the names of all local ones."""
        with ExitStack() as closing:
            names, pinned = self._pin_checkpoints(whole, closing)
            for checkpoint in pinned:
                self._copy_checkpoint(checkpoint)
                whole[checkpoint.name] = checkpoint.manifest
        for name in sorted(names - {checkpoint.name for checkpoint in pinned}, key=_step, reverse=True):
            with ExitStack() as closing:
                opened = self._open_checkpoint(name, whole, closing)
                if opened:
                    self._copy_checkpoint(opened)
                    whole[name] = opened.manifest
        return names

    def _pin_checkpoints(self, whole: dict[str, Manifest], closing: ExitStack) -> tuple[set[str], list[_Opened]]:
        """Return the names of all local checkpoints, and the best and the last one, opened before they can vanish."""
        for _ in range(100):
            with ExitStack() as attempt:
                targets = dict.fromkeys(name for name in map(self._read_pointer, POINTERS) if name)
                names = {path.name for _, path in list_steps(self.folder / CHECKPOINTS)}
                opened = [self._open_checkpoint(name, whole, attempt) for name in targets]
                if targets.keys() <= names and all((self.folder / CHECKPOINTS / name).is_dir() for name in targets):
                    closing.push(attempt.pop_all())
                    return names, [checkpoint for checkpoint in opened if checkpoint]
        return set(), []  # the run removes them faster than they can be opened

    def _read_pointer(self, name: str) -> str | None:
        try:
            return (self.folder / CHECKPOINTS / name).read_text().strip()
        except FileNotFoundError:
            return None

    def _open_checkpoint(self, name: str, whole: dict[str, Manifest], closing: ExitStack) -> _Opened | None:
        """Open the files of a checkpoint; None if it is whole at the other place, or gone from this one."""
        path = self.folder / CHECKPOINTS / name
        try:
            manifest = read_manifest(path)
            if manifest.run_id != self.run_id or whole.get(name) == manifest:
                return None
            files: dict[str, BinaryIO] = {
                file: closing.enter_context((path / file).open("rb")) for file in manifest.files
            }
            return _Opened(name, manifest, files)
        except (DamagedCheckpointError, FileNotFoundError):
            return None

    def _copy_checkpoint(self, checkpoint: _Opened) -> None:
        folder = f"{CHECKPOINTS}/{checkpoint.name}"
        self.storage.remove(f"{folder}/{MANIFEST}")  # of another checkpoint of this step, which is no longer whole now
        for name, file in checkpoint.files.items():
            file.seek(0)
            self.storage.write(f"{folder}/{name}", file)
        found = self.storage.list_sizes(folder)
        for name, record in checkpoint.manifest.files.items():
            size = found.get(f"{folder}/{name}")
            if size != record.bytes:
                raise OSError(f"{folder}/{name} has {size} bytes there instead of {record.bytes}")
        self.storage.replace(f"{folder}/{MANIFEST}", io.BytesIO(checkpoint.manifest.render()))

    def _remove_old(self, whole: dict[str, Manifest], local: set[str]) -> None:
        """Remove the checkpoints that this machine has removed, once one of the present ones is whole."""
        if not local & whole.keys():
            return
        known = {name for manifest in whole.values() for name in manifest.files}
        for name in self.storage.list_folders(CHECKPOINTS):
            if name.startswith("step-") and name not in local:
                folder = f"{CHECKPOINTS}/{name}"
                # One that was copied in part has no manifest to say which files are its own.
                for file in [MANIFEST, *sorted(whole[name].files if name in whole else known)]:
                    self.storage.remove(f"{folder}/{file}")
                self.storage.remove_folder(folder)
                whole.pop(name, None)


def read_remote_manifest(storage: Storage, name: str) -> Manifest | None:
    """Return the manifest of a checkpoint at another place; None if there is none that is valid."""
    content = storage.read(f"{CHECKPOINTS}/{name}/{MANIFEST}")
    try:
        return parse_manifest(content, f"{name}/{MANIFEST}") if content is not None else None
    except DamagedCheckpointError:
        return None


def read_owner(storage: Storage) -> str | None:
    """Return the id of the run whose copy is in a folder; None if none is."""
    try:
        return str(json.loads(storage.read(MARKER) or b"")["id"])
    except (ValueError, LookupError, TypeError):
        return None


class _WholeLines:
    """Reads what a log holds now, without a line that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - LONGEST_LINE)
        file.seek(start)
        self._left = start + file.read(size - start).rfind(b"\n") + 1
        self._file = file
        file.seek(0)

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes."""
        found = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(found)
        return found


def _step(name: str) -> int:
    number = name.removeprefix("step-")
    return int(number) if number.isdigit() else -1
