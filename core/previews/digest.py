"""A digest of the batches of an update, to prove that what is shown is what is trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from taskrecipe.training.batches import MicroBatch


def digest_batches(batches: Iterable[MicroBatch]) -> str:
    """Return the sha256 of row numbers, counts, and of each input's name, type, shape and bytes."""
    digest = hashlib.sha256()
    for batch in batches:
        digest.update(repr((list(batch.rows), sorted(batch.counts.items()))).encode())
        _feed(digest, batch.inputs)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name in sorted(value):
            digest.update(name.encode())
            _feed(digest, value[name])
    elif isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(digest, item)
    else:
        digest.update(repr(value).encode())
