"""Installed distributions, as far as entry points go: metadata and modules in a folder on the path."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str],
    version: str = "1.0",
) -> None:
    """Put a distribution into `folder`: entry points by group and name, and the source of each module."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = [
        "\n".join([f"[taskrecipe.{group}]", *(f"{entry} = {target}" for entry, target in entries.items())])
        for group, entries in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(sections))
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
