"""One number for all weights and optimizer state, so that two runs can be compared bit by bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from taskrecipe.core.checkpoints.tensorfile import read_entries
from taskrecipe.core.errors import RecipeError

FILES = ("model.safetensors", "optimizer.safetensors")


def fingerprint(checkpoint_folder: Path) -> str:
    """The sha256 over name, type, shape and bytes of every tensor, in the order of files and names."""
    digest = hashlib.sha256()
    for name in FILES:
        path = checkpoint_folder / name
        if not path.is_file():
            raise RecipeError(f"{checkpoint_folder} is not a checkpoint: it has no {name}")
        _add_file(digest, path)
    return digest.hexdigest()


def _add_file(digest: hashlib._Hash, path: Path) -> None:
    entries = read_entries(path)
    with path.open("rb") as file:
        for name in sorted(entries):
            entry = entries[name]
            digest.update(json.dumps([path.name, name, entry.dtype, entry.shape]).encode())
            file.seek(entry.start)
            digest.update(file.read(entry.end - entry.start))
