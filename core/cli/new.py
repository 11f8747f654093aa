"""`recipe new`: a starter spec."""

from __future__ import annotations

from pathlib import Path

import typer

from taskrecipe.core.cli.examples import example
from taskrecipe.core.errors import UsageError
from taskrecipe.core.registry import installed


def new(name: str, path: Path | None, *, force: bool) -> None:
    """Write an example spec of the recipe called `name`; an existing file is kept unless `force`."""
    plugin = installed().find("recipes", name)
    text = example(plugin, plugin.load())
    path = path or Path()
    path = path / f"{plugin.name}.toml" if path.is_dir() else path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise UsageError(f"{path} exists already; choose another path, or overwrite it by --force") from None
        raise UsageError(f"{path} can't be written: {error.strerror}") from None
    typer.echo(f"{path} written; next: recipe validate {path}")
