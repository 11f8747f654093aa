"""`recipe fingerprint`: a hash of the content of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import typer

from taskrecipe.checkpoints.checkpoint import find_checkpoint
from taskrecipe.checkpoints.fingerprint import fingerprint as of_checkpoint
from taskrecipe.system.secrets import to_json


def fingerprint(folder: Path, at: str, *, as_json: bool = False) -> None:
    """Print the fingerprint of one of a run's checkpoints."""
    checkpoint = find_checkpoint(folder / "checkpoints", at)
    checkpoint.verify()
    sha256 = of_checkpoint(checkpoint.path)
    typer.echo(to_json({"checkpoint": checkpoint.path.name, "sha256": sha256}) if as_json else sha256)
