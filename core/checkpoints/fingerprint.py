"""One digest of all weights and optimizer state, to compare two runs bit by bit."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from taskrecipe.checkpoints.stored_tensors import StoredTensors, find_parts
from taskrecipe.errors import RecipeError

FILES = ("model.safetensors", "optimizer.safetensors")


def fingerprint(checkpoint_folder: Path) -> str:
    """Return the sha256 of the name, type, shape and bytes of every tensor, in the order of files and names.

    Tensors are hashed whole, so it does not depend on how many processes have written them.
    """
    digest = hashlib.sha256()
    there = [path.name for path in checkpoint_folder.iterdir()] if checkpoint_folder.is_dir() else []
    for file in FILES:
        parts = find_parts(there, file)
        if not parts:
            raise RecipeError(f"{checkpoint_folder} is not a checkpoint: it has no {file}")
        _add_tensors(digest, file, StoredTensors(parts, checkpoint_folder.joinpath, checkpoint_folder))
    return digest.hexdigest()


def _add_tensors(digest: hashlib._Hash, file: str, stored: StoredTensors) -> None:
    for name in sorted(stored.tensors):
        tensor = stored.tensors[name]
        digest.update(json.dumps([file, name, tensor.dtype, tensor.shape]).encode())
        for content in stored.read_bytes(name):
            digest.update(content)
