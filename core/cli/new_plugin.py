"""`recipe new-plugin`: a package with a recipe of one's own, its test and its CI, that works as written."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from string import Template

import typer

from taskrecipe.core.errors import UsageError
from taskrecipe.core.registry import installed

NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")

FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "$module.py": "recipe.py.txt",
    "$name.toml": "spec.toml.txt",
    "tests/test_$name.py": "test.py.txt",
    ".github/workflows/ci.yml": "ci.yml.txt",
}
"""What is written, and from which template."""


def new_plugin(name: str, folder: Path | None) -> None:
    """Write the package of a recipe called `name` into a new folder."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} can't be a recipe's name here: it takes a-z, 0-9 and _, beginning with a letter")
    if name in installed().names("recipes"):
        raise UsageError(f"there is a recipe called {name!r} already; choose another name")
    target = folder or Path(f"recipe-{name.replace('_', '-')}")
    for path, text in contents(name).items():
        _write(target / path, text)
    typer.echo(f"{target} written; next: pip install -e '{target}[dev]', then recipe show {name}, then pytest {target}")


def contents(name: str) -> dict[str, str]:
    """Every file of the package, by its path."""
    words = {
        "name": name,
        "module": f"recipe_{name}",
        "Class": "".join(word.capitalize() for word in name.split("_")),
        "distribution": f"recipe-{name.replace('_', '-')}",
        "summary": "Which class does a text belong to?",
    }
    folder = files("taskrecipe.core.cli") / "template"
    return {
        Template(path).substitute(words): Template((folder / source).read_text()).substitute(words)
        for path, source in FILES.items()
    }


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}; choose a new folder") from None
