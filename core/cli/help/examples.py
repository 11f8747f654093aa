"""An example spec for every recipe: a bundled one, or one made from the recipe's options."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from taskrecipe.cli.help.fields import Key, format_toml, list_keys
from taskrecipe.plugins.registry import OWN_DISTRIBUTION, Plugin
from taskrecipe.recipe import Recipe


def example_spec(plugin: Plugin, recipe: type[Recipe]) -> str:
    """Return the text of an example spec of a recipe."""
    path = _find_bundled(plugin.name) if plugin.distribution == OWN_DISTRIBUTION else None
    return path.read_text(encoding="utf-8") if path else _write_example(plugin, recipe)


def specs_folder() -> Path:
    """Return the folder of the bundled specs."""
    found = find_spec("taskrecipe.specs")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the bundled specs of taskrecipe are not installed")
    return Path(next(iter(found.submodule_search_locations)))


def _find_bundled(name: str) -> Path | None:
    """Return the simplest bundled spec of a recipe: without parent and local files, and not in a sub-folder."""
    ranked = [
        (len(path.relative_to(specs_folder()).parts), path.stem != name, str(path), path)
        for path, recipe in _list_bundled()
        if recipe == name
    ]
    return min(ranked)[-1] if ranked else None


@cache
def _list_bundled() -> list[tuple[Path, str | None]]:
    """Return every bundled spec that stands for itself and names no local files, with its recipe."""
    return [
        (path, spec.get("recipe"))
        for path in specs_folder().rglob("*.toml")
        if "extends" not in (spec := tomllib.loads(path.read_text(encoding="utf-8")))
        and not path.name.startswith("_")
        and not spec.get("data", {}).get("files")
    ]


_MODEL = ("[model]", '# name = "organization/model"     # a hub id, or a folder', "")


def _write_example(plugin: Plugin, recipe: type[Recipe]) -> str:
    return "\n".join(
        [
            f"# {summary(recipe)}",
            "spec_version = 1",
            f"recipe = {format_toml(plugin.name)}",
            "seed = 42",
            "",
            "[task]",
            *(line for key in list_keys(recipe.Options) for line in _option_lines(key)),
            "",
            *(_MODEL if recipe.uses_model else ()),
            "[data]",
            "sample = true                    # train on the recipe's sample data; to use your own, remove this line",
            '# path = "organization/data"      # a hub id; or [data.files] train = "train.csv"',
            "",
            "[train]",
            "epochs = 3",
            "batch_size = 32",
            "learning_rate = 5e-5",
            "",
        ]
    )


def _option_lines(key: Key) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(key.description, 100))
    if key.required and not key.in_optional_table:
        yield f"{key.name} = {key.example}"
    else:
        yield f"# {key.name} = {key.default or key.example}"


def summary(thing: type) -> str:
    """Return the first line of a plugin's docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0] or thing.__name__
