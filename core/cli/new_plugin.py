"""`recipe new-plugin`: write a package with a plugin, its test and its CI. It works as written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Literal

import typer

from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import Group, installed
from taskrecipe.spec.diagnostics import make_printable
from taskrecipe.system.secrets import to_json

Kind = Literal["recipe", "metric", "technique", "optimizer", "schedule", "callback", "tracker"]

NAME = re.compile(r"[a-z][a-z0-9_]{0,40}")


@dataclass(frozen=True)
class Example:
    """What the plugin in the package does, and the header of its table in the spec."""

    group: Group
    summary: str
    header: str = ""


EXAMPLES: dict[Kind, Example] = {
    "recipe": Example("recipes", "Which class does a text belong to?"),
    "metric": Example("recipes", "The recipe `glue` with one more metric, balanced accuracy."),
    "technique": Example("techniques", "Train only some of the model's parameters.", "[[techniques]]"),
    "optimizer": Example("optimizers", "Gradient descent with Nesterov momentum.", "[optimizer]"),
    "schedule": Example("schedules", "A learning rate that falls exponentially after warmup.", "[schedule]"),
    "callback": Example("callbacks", "Evaluate after chosen updates too.", "[[callbacks]]"),
    "tracker": Example("trackers", "Write metrics as lines of JSON.", "[track]"),
}


def new_plugin(name: str, folder: Path | None, kind: Kind = "recipe", *, as_json: bool = False) -> None:
    """Write the package of a plugin called `name` into a new folder."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name!r} can't be the name of a {kind} here: use a-z, 0-9 and _, and begin with a letter")
    if name in installed().names(EXAMPLES[kind].group):
        raise UsageError(f"a {kind} called {name!r} is already installed; choose another name")
    target = folder or Path(f"recipe-{name.replace('_', '-')}")
    for path, text in package_files(name, kind).items():
        _write_new(target / path, text)
    shown = make_printable(str(target))
    commands = [f"pip install -e '{shown}[dev]'", f"recipe show {name}", f"pytest {shown}"]
    written = {"folder": str(target), "files": list(package_files(name, kind)), "next": commands}
    typer.echo(to_json(written) if as_json else f"{shown} written; next: {', then '.join(commands)}")


def package_files(name: str, kind: Kind = "recipe") -> dict[str, str]:
    """Return the text of every file of the package, by its path."""
    example = EXAMPLES[kind]
    values = {
        "name": name,
        "module": f"recipe_{name}",
        "Class": "".join(word.capitalize() for word in name.split("_")),
        "distribution": f"recipe-{name.replace('_', '-')}",
        "group": example.group,
        "summary": example.summary,
        "header": example.header,
    }
    folder = files("taskrecipe.cli") / "template"
    return {
        Template(path).substitute(values): Template((folder / source).read_text()).substitute(values)
        for path, source in _templates(kind).items()
    }


def _templates(kind: Kind) -> dict[str, str]:
    """Return the template of each file of the package."""
    specs = {"recipe": "spec.toml.txt", "metric": "metric_spec.toml.txt"}
    return {
        "pyproject.toml": "pyproject.toml.txt",
        "$module.py": f"{kind}.py.txt",
        "$name.toml": specs.get(kind, "plugin_spec.toml.txt"),
        "tests/test_$name.py": "test.py.txt" if kind == "recipe" else f"{kind}_test.py.txt",
        ".github/workflows/ci.yml": "ci.yml.txt",
    }


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(
            f"{make_printable(str(path))} can't be written: {error.strerror}; choose a new folder"
        ) from None
