"""Digests of source code: what code has made counts only as long as the code stays the same."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path


@cache
def digest_code(module_name: str) -> str:
    """Return the sha256 of a module's source and of its whole package, where what it calls is most likely found."""
    module = sys.modules[module_name]
    file = Path(str(module.__file__))
    files = sorted(file.parent.rglob("*.py")) if module.__package__ else [file]
    return hash_files(file.parent, files)


def hash_files(root: Path, files: list[Path]) -> str:
    """Return the sha256 of files: their names below `root`, their sizes and their content."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()
