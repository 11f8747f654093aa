"""An example spec for every recipe: one that is bundled, or one made from the recipe's own options."""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from taskrecipe.core.cli.fields import Key, keys, toml
from taskrecipe.core.recipe import Recipe
from taskrecipe.core.registry import OWN_DISTRIBUTION, Plugin


def example(plugin: Plugin, recipe: type[Recipe]) -> str:
    """The text of an example spec of a recipe."""
    path = _bundled(plugin.name) if plugin.distribution == OWN_DISTRIBUTION else None
    return path.read_text(encoding="utf-8") if path else _generated(plugin, recipe)


def folder() -> Path:
    """Where the bundled specs are."""
    found = find_spec("taskrecipe.specs")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the bundled specs of taskrecipe are not installed")
    return Path(next(iter(found.submodule_search_locations)))


def _bundled(name: str) -> Path | None:
    """The plainest bundled spec of a recipe: it stands alone, needs no files, and lies at the top."""
    ranked = [
        (len(path.relative_to(folder()).parts), path.stem != name, str(path), path)
        for path in folder().rglob("*.toml")
        if (spec := tomllib.loads(path.read_text(encoding="utf-8"))).get("recipe") == name
        and "extends" not in spec
        and not path.name.startswith("_")
        and not spec.get("data", {}).get("files")
    ]
    return min(ranked)[-1] if ranked else None


def _generated(plugin: Plugin, recipe: type[Recipe]) -> str:
    return "\n".join(
        [
            f"# {summary(recipe)}",
            "spec_version = 1",
            f"recipe = {toml(plugin.name)}",
            "seed = 42",
            "",
            "[task]",
            *(line for key in keys(recipe.Options) for line in _option(key)),
            "",
            "[model]",
            '# name = "organisation/model"     # a hub id, or a folder',
            "",
            "[data]",
            "sample = true                    # train on the recipe's own sample data; remove this for yours:",
            '# path = "organisation/data"      # a hub id; or [data.files] train = "train.csv"',
            "",
            "[train]",
            "epochs = 3",
            "batch_size = 32",
            "learning_rate = 5e-5",
            "",
        ]
    )


def _option(key: Key) -> Iterator[str]:
    yield from (f"# {line}" for line in textwrap.wrap(key.description, 100))
    if key.required and not key.in_optional_table:
        yield f"{key.name} = {key.example}"
    else:
        yield f"# {key.name} = {key.default or key.example}"


def summary(thing: type) -> str:
    """The first line of what a recipe or plugin says of itself."""
    return (thing.__doc__ or "").strip().partition("\n")[0] or thing.__name__
