"""Add to the site what is generated: the reference, the pages of `recipe guide`, and the notebooks.

mkdocs calls `on_files` while it builds. Nothing generated is kept in the repository, so nothing can be out of date.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from reference import reference_pages  # noqa: E402 - it lies next to this file
from rendered_notebooks import notebook_pages  # noqa: E402

from taskrecipe.cli.guide import read_pages  # noqa: E402


def on_files(files: Files, *, config: Any) -> Files:
    """Add every generated page."""
    for path, text in all_pages().items():
        files.append(File.generated(config, path, content=text))
    for notebook in sorted((DOCS / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.name}", abs_src_path=str(notebook)))
    return files


def all_pages() -> dict[str, str]:
    """Return the text of every generated page, by its path."""
    guide = {f"guide/{name}.md": text for name, text in read_pages().items() if name != "troubleshooting"}
    return {**guide, **reference_pages(), **notebook_pages(DOCS / "notebooks")}
