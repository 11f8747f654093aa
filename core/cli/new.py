"""`recipe new`: write an example spec to start from."""

from __future__ import annotations

import re
from pathlib import Path

import typer

from taskrecipe.cli.help.examples import example_spec
from taskrecipe.cli.starter.spec_text import write_spec_for
from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import Plugin, installed
from taskrecipe.spec.diagnostics import make_printable
from taskrecipe.system.secrets import to_json

_FALLBACK = re.compile(r'^offline = "sample".*$', re.MULTILINE)


def new(name: str, path: Path | None, *, data: Path | None, force: bool, as_json: bool = False) -> None:
    """Write a spec of the recipe called `name`: for the files in `data`, or else an example.

    An existing file is kept unless `force` is given.
    """
    plugin = installed().find("recipes", name)
    path = path or Path()
    path = path / f"{plugin.name}.toml" if path.is_dir() else path
    text = _write_example(plugin) if data is None else write_spec_for(plugin, data, path)
    write_new_spec(path, text, force=force)
    shown = make_printable(str(path))
    next_command = f"recipe {'validate' if data is None else 'preview'} {shown}"
    typer.echo(
        to_json({"file": str(path), "next": next_command}) if as_json else f"{shown} written; next: {next_command}"
    )


def write_new_spec(path: Path, text: str, *, force: bool) -> None:
    """Write a spec to a new file. An existing one is replaced only with `force`."""
    shown = make_printable(str(path))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        if isinstance(error, FileExistsError) and path.exists():
            raise UsageError(f"{shown} exists already; choose another path, or overwrite it with --force") from None
        raise UsageError(f"{shown} can't be written: {error.strerror}") from None


def _write_example(plugin: Plugin) -> str:
    # A bundled spec falls back to sample data, so that it can be tried anywhere. One's own spec must not.
    return _FALLBACK.sub(
        'offline = "error"           # or "sample": train on sample data if the hub can\'t be reached',
        example_spec(plugin, plugin.load()),
    )
