"""Small checkpoints whose content tells their step."""

from __future__ import annotations

import json
from pathlib import Path

from taskrecipe.checkpoints.store import Checkpoint, Checkpoints, Contents

RUN_ID = "a1b2c3"


def store(folder: Path, keep: int = 2, run_id: str = RUN_ID) -> Checkpoints:
    return Checkpoints(folder, keep=keep, run_id=run_id)


def contents(step: int, size: int = 100) -> Contents:
    """Files without tensors, so that no test has to wait for torch that doesn't need it."""
    return {
        "model.safetensors": bytes([step % 256]) * size,
        "optimizer.safetensors": bytes([step % 256]) * 2 * size,
        "state.json": json.dumps({"step": step}).encode(),
    }


def tensor_contents(step: int) -> Contents:
    import torch

    return {
        "model.safetensors": {"weight": torch.full((50, 40), float(step)), "bias": torch.full((40,), float(step))},
        "optimizer.safetensors": {"state/0/exp_avg": torch.full((50, 40), -float(step))},
        "state.json": json.dumps({"step": step}).encode(),
    }


def told_step(checkpoint: Checkpoint) -> int:
    """The step that the content tells; reads every file."""
    checkpoint.verify()
    step: int = checkpoint.json("state.json")["step"]
    return step


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
