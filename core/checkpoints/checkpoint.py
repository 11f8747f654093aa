"""One committed checkpoint, and finding it by its name."""

from __future__ import annotations

import hashlib
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taskrecipe.checkpoints.manifest import FileRecord, Manifest, read_manifest
from taskrecipe.checkpoints.safetensors_file import load_tensors
from taskrecipe.checkpoints.stored_tensors import StoredTensors, find_parts
from taskrecipe.errors import DamagedCheckpointError, UsageError

if TYPE_CHECKING:
    import torch

POINTERS = ("best", "last")


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint: its folder and manifest. Every file is compared with its checksum before it is read."""

    path: Path
    manifest: Manifest
    _intact: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read the checkpoint in a folder. Raise `DamagedCheckpointError` if its manifest has changed."""
        return cls(path, read_manifest(path))

    @property
    def step(self) -> int:
        """How many updates had been taken."""
        return self.manifest.step

    @property
    def bytes(self) -> int:
        """The size of its files."""
        return sum(record.bytes for record in self.manifest.files.values())

    def verify(self) -> None:
        """Compare every file with the manifest. Raise `DamagedCheckpointError` if one differs."""
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(self._verify_file, self.manifest.files):
                pass

    def tensors(self, file: str, device: str = "cpu") -> dict[str, torch.Tensor]:
        """Return the tensors of a safetensors file. A tensor with several names is returned under each.

        Where each process has written a part of the file, the tensors are put together.
        """
        if file in self.manifest.files:
            return load_tensors(self._verify_file(file), device)
        stored = self.stored_tensors(file)
        tensors = {name: stored.read(name).to(device) for name in stored.tensors}
        return tensors | {name: tensors[owner] for name, owner in stored.tied.items()}

    def stored_tensors(self, file: str) -> StoredTensors:
        """Return the tensors of a safetensors file, or of its parts, to read some of them or some of their rows."""
        parts = find_parts(self.manifest.files, file)
        if not parts:
            self._verify_file(file)  # raises: there is none
        return StoredTensors(parts, self._verify_file, self.path)

    def json(self, file: str) -> Any:
        """Return the content of a JSON file."""
        return json.loads(self._verify_file(file).read_bytes())

    def _verify_file(self, name: str) -> Path:
        path, record = self.path / name, self.manifest.files.get(name)
        if record is None:
            raise DamagedCheckpointError(f"{self.path} has no {name}; it has {', '.join(self.manifest.files)}")
        if name not in self._intact:
            _compare_file(path, record)
            self._intact.add(name)
        return path


def _compare_file(path: Path, record: FileRecord) -> None:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != record.bytes:
                raise DamagedCheckpointError(f"{path} has {size:,} bytes instead of {record.bytes:,}")
            if hashlib.file_digest(file, "sha256").hexdigest() != record.sha256:
                raise DamagedCheckpointError(f"{path} has changed since it was written: its sha256 is different")
    except OSError as error:
        raise DamagedCheckpointError(f"{path} can't be read: {error.strerror}") from error


def find_checkpoint(folder: Path, name: str) -> Checkpoint:
    """Return the checkpoint called `name` in a run's checkpoint folder: "best", "last", "step-12"."""
    pointer = folder / name
    target = pointer.read_text(errors="replace").strip() if name in POINTERS and pointer.is_file() else name
    match = re.fullmatch(r"step-0*([0-9]+)", target)
    path = folder / f"step-{match[1]}" if match else None
    if path is None or not path.is_dir():
        there = ", ".join(f"step-{step}" for step, _ in list_steps(folder)) or "none"
        raise UsageError(f"{folder} has no checkpoint {name!r}; there are: {there}")
    return Checkpoint.read(path)


def list_steps(folder: Path) -> list[tuple[int, Path]]:
    """Return every folder that is named like a checkpoint, oldest first. Symbolic links don't count."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    matches = [re.fullmatch(r"step-(0|[1-9][0-9]*)", name) for name in folders]
    return sorted((int(match[1]), folder / match[0]) for match in matches if match)
