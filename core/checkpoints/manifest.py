"""The manifest of a checkpoint: its run and step, its files with size and sha256, and a checksum of all that."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from taskrecipe.errors import DamagedCheckpointError

MANIFEST = "MANIFEST.json"
FORMAT = 2


@dataclass(frozen=True)
class FileRecord:
    """The size and checksum that a file must have."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The list of a checkpoint's files. It is written last."""

    run_id: str
    step: int
    files: dict[str, FileRecord]

    def render(self) -> bytes:
        """Return the bytes of the file. There is one way to write a manifest, so any other byte means damage."""
        content = {"format": FORMAT, **asdict(self)}
        checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return json.dumps({**content, "sha256": checksum}, sort_keys=True, indent=1).encode() + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a checkpoint. Raise `DamagedCheckpointError` if a byte of it has changed."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpointError(f"{path} can't be read: {error}") from error
    return parse_manifest(text, str(path))


def parse_manifest(text: bytes, path: str) -> Manifest:
    """Read the bytes of a manifest. Raise `DamagedCheckpointError`, which names `path`, if one has changed."""
    try:
        content = json.loads(text)
        version = content["format"]
        manifest = Manifest(
            run_id=content["run_id"],
            step=content["step"],
            files={name: FileRecord(**record) for name, record in content["files"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path} can't be read: {error}") from error
    if version != FORMAT:
        raise DamagedCheckpointError(f"{path} has format {version!r}; this version reads {FORMAT}")
    if manifest.render() != text:
        raise DamagedCheckpointError(f"{path} has changed since it was written")
    return manifest
