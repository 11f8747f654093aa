"""What a checkpoint says of itself: its files with size and sha256, whose it is, and a checksum over all that."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from taskrecipe.core.errors import RecipeError

NAME = "MANIFEST.json"
FORMAT = 1


class DamagedCheckpointError(RecipeError):
    """A checkpoint is not what was written; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The last file written into a checkpoint."""

    run_id: str
    step: int
    spec_hash: str
    files: dict[str, FileRecord]

    def render(self) -> bytes:
        """The one way to write this manifest: a file with any other byte in it is damaged."""
        content = {"format": FORMAT, **asdict(self)}
        checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return json.dumps({**content, "sha256": checksum}, sort_keys=True, indent=1).encode() + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, if not a byte of it has changed."""
    path = folder / NAME
    try:
        text = path.read_bytes()
        content = json.loads(text)
        version = content["format"]
        manifest = Manifest(
            run_id=content["run_id"],
            step=content["step"],
            spec_hash=content["spec_hash"],
            files={name: FileRecord(**record) for name, record in content["files"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path} can't be read: {error}") from error
    if version != FORMAT:
        raise DamagedCheckpointError(f"{path} has format {version!r}; this version reads {FORMAT}")
    if manifest.render() != text:
        raise DamagedCheckpointError(f"{path} has changed since it was written")
    return manifest
