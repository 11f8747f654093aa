"""Show a notebook as a page: its text and its code. What the code prints is seen by running it."""

from __future__ import annotations

import json
from pathlib import Path


def notebook_pages(folder: Path) -> dict[str, str]:
    """Return the page of each notebook in `folder`, by its path."""
    return {f"notebooks/{path.stem}.md": _render(path) for path in sorted(folder.glob("*.ipynb"))}


def _render(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    parts = ["".join(cell["source"]) for cell in cells]
    shown = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, parts, strict=True)
    ]
    title, rest = shown[0], shown[1:]
    return "\n\n".join([title, f"[Download this notebook]({path.name})", *rest]) + "\n"
