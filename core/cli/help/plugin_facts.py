"""Everything that `recipe show` knows of a plugin, as JSON values. Pages of the documentation are made from it too."""

from __future__ import annotations

import inspect
from typing import Any

from taskrecipe.cli.help.card import Card, Facts
from taskrecipe.cli.help.fields import Key, format_toml, list_keys
from taskrecipe.plugins.registry import Plugin
from taskrecipe.spec.schema import PLUGIN_TABLES


def describe_plugin(plugin: Plugin) -> dict[str, Any]:
    """Return a plugin's description, keys and example; of a recipe also metrics, columns and splits of each task."""
    is_recipe = plugin.group == "recipes"
    return {
        "name": plugin.name,
        "kind": plugin.group[:-1],
        "distribution": plugin.distribution,
        "version": plugin.version,
        "description": inspect.cleandoc(plugin.load().__doc__ or ""),
        "table": plugin_header(plugin),
        **(_describe_recipe(Card(plugin)) if is_recipe else _describe_table(plugin)),
    }


def plugin_header(plugin: Plugin) -> str:
    """Return the header of the table that holds the plugin's keys in a spec."""
    if plugin.group == "recipes":
        return "[task]"
    key = next(key for key, group in PLUGIN_TABLES.items() if group == plugin.group)
    return f"[[{key}]]" if plugin.group in ("callbacks", "techniques") else f"[{key}]"


def plugin_keys(plugin: Plugin) -> list[Key]:
    """Return the keys of a plugin that is no recipe, without its name."""
    return [key for key in list_keys(plugin.load()) if key.name != "name"]


def plugin_example(plugin: Plugin) -> str:
    """Return the table of a plugin that is no recipe, with every key; those with a default are comments."""
    lines = [plugin_header(plugin), f"name = {format_toml(plugin.name)}"]
    for key in plugin_keys(plugin):
        given = key.example if key.required else key.default
        lines.append(f"{'' if key.required else '# '}{key.name} = {given or '…'}")
    return "\n".join(lines) + "\n"


def _describe_recipe(card: Card) -> dict[str, Any]:
    return {
        "keys": [_describe_key(key) for key in card.options],
        "tasks": {task: _describe_facts(facts) for task, facts in card.facts.items()},
        "example": card.example,
    }


def _describe_table(plugin: Plugin) -> dict[str, Any]:
    return {"keys": [_describe_key(key) for key in plugin_keys(plugin)], "example": plugin_example(plugin)}


def _describe_key(key: Key) -> dict[str, Any]:
    return {
        "key": key.name,
        "allowed": key.allowed,
        "required": key.required and not key.in_optional_table,
        "default": key.schema.get("default"),
        "meaning": key.description,
    }


def _describe_facts(facts: Facts) -> dict[str, Any]:
    columns = {
        name: {"meaning": column.description, "required": column.required, "target": column.target}
        for name, column in facts.columns.items()
    }
    return {"metrics": facts.metrics, "columns": columns, "splits": facts.splits}
