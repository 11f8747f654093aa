"""Shell completion of `--set KEY=VALUE`: the keys of the spec on the command line, and the values they allow."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from taskrecipe.spec.schema import Schema

SHELL = "_RECIPE_COMPLETE"
"""The variable in which the shell says how it wants to be answered."""
BASH_KEY = "_RECIPE_SET_KEY"
"""The variable that keeps the key whose value bash completes: bash takes `KEY`, `=` and `VALUE` for three words."""
_PLAIN = r"[\w./~@:+*-]+"
"""A value that needs no quotes, neither in a shell nor for `--set`."""


def complete_sets(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the assignments that start like this: keys first, then the values of a key."""
    keys = _list_keys(_find_spec(ctx))
    if name := os.environ.get(BASH_KEY):
        return _list_values(name, keys.get(name, {}))
    name, sign, _ = incomplete.partition("=")
    if sign:
        return [f"{name}={value}" for value in _list_values(name, keys.get(name, {}))]
    found = [key for key in keys if key.startswith(name)]
    if len(found) > 1:
        return [f"{key}=" for key in found]
    # Several answers: a shell then goes up to the sign and adds no space.
    return [f"{key}={value}" for key in found for value in ("", *_list_values(key, keys[key]))]


def join_bash_words() -> None:
    """Undo how bash splits the words of a line at `=`, before they are parsed.

    Earlier assignments are joined again. Of the one that is being typed, bash completes the value alone: its key is
    kept in a variable.
    """
    if os.environ.get(SHELL) != "complete_bash":
        return
    try:
        words, current = shlex.split(os.environ["COMP_WORDS"]), int(os.environ["COMP_CWORD"])
    except (KeyError, ValueError):  # a quote that is still open: nothing is completed
        return
    joined: list[str] = []
    for word in words[:current]:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    typed = words[current] if current < len(words) else ""
    if joined and (typed == "=" or joined[-1].endswith("=")):
        os.environ[BASH_KEY] = joined.pop().removesuffix("=")
        typed = typed.removeprefix("=")
    os.environ["COMP_WORDS"] = shlex.join([*joined, typed])
    os.environ["COMP_CWORD"] = str(len(joined))


def _find_spec(ctx: typer.Context) -> Path | None:
    """Return the spec or run folder on the command line; None before there is one."""
    given = [ctx.params.get("spec"), ctx.params.get("folder"), *ctx.args]
    return next((Path(str(path)) for path in given if path and Path(str(path)).exists()), None)


def _list_keys(path: Path | None) -> dict[str, Schema]:
    """Return the keys that can be set, each with its schema: with a spec also those of its recipe and plugins."""
    from taskrecipe.cli.help.fields import list_keys
    from taskrecipe.errors import RecipeError
    from taskrecipe.plugins.registry import installed
    from taskrecipe.spec.key_path import dotted_key
    from taskrecipe.spec.layers import load_layers
    from taskrecipe.spec.tables import Tables

    values: dict[str, Any] = {}
    if path is not None:
        with suppress(RecipeError):
            values = load_layers(path / "spec.toml" if path.is_dir() else path).values
    models = {path: model for path, model in Tables(values, installed()).models.items() if not _is_in_list(path)}
    found: dict[str, Schema] = {}
    for table, model in sorted(models.items(), key=lambda item: len(item[0])):
        found |= {dotted_key((*table, key.name)): key.schema for key in list_keys(model)}
    tables = {dotted_key(table) for table in models}
    return {key: schema for key, schema in found.items() if key not in tables}


def _is_in_list(path: tuple[str | int, ...]) -> bool:
    return any(isinstance(part, int) for part in path)


def _list_values(key: str, schema: Schema) -> list[str]:
    """Return values that a key allows: all of a choice, else its default."""
    from taskrecipe.cli.help.fields import format_toml
    from taskrecipe.plugins.registry import installed
    from taskrecipe.spec.schema import PLUGIN_TABLES

    group = PLUGIN_TABLES.get(key.removesuffix(".name")) if key.endswith(".name") else None
    if key == "recipe" or group:
        return installed().names(group or "recipes")
    texts = (value if isinstance(value, str) else format_toml(value) for value in _find_choices(schema))
    return [text for text in dict.fromkeys(texts) if re.fullmatch(_PLAIN, text)]


def _find_choices(schema: Schema) -> Iterator[Any]:
    for one in (schema, *schema.get("anyOf", ())):
        yield from one.get("enum", ())
        if "const" in one:
            yield one["const"]
        if one.get("type") == "boolean":
            yield from (True, False)
    if isinstance(schema.get("default"), str | int | float):
        yield schema["default"]
