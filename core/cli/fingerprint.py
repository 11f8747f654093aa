"""`recipe fingerprint`: one number for the bits of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import typer

from taskrecipe.core.checkpoints.checkpoint import find
from taskrecipe.core.checkpoints.fingerprint import fingerprint as of_checkpoint


def fingerprint(folder: Path, at: str) -> None:
    """Print the fingerprint of one of a run's checkpoints."""
    checkpoint = find(folder / "checkpoints", at)
    checkpoint.verify()
    typer.echo(of_checkpoint(checkpoint.path))
