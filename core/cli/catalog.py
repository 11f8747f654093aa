"""`recipe list` and `recipe plugins`: what is installed. What is broken is shown as broken and stops nothing."""

from __future__ import annotations

import json
from importlib import import_module
from itertools import groupby
from typing import Any

import typer

from taskrecipe.core.cli.layout import entries, heading, paragraph, table
from taskrecipe.core.errors import PluginError
from taskrecipe.core.registry import Plugin, installed


def print_recipes(*, as_json: bool) -> None:
    """List the recipes with what they are for, their tasks and metrics."""
    registry = installed()
    recipes = [_recipe(name, registry.find("recipes", name)) for name in registry.names("recipes")]
    if as_json:
        typer.echo(json.dumps(recipes, indent=2, ensure_ascii=False))
        return
    for owner, group in groupby(sorted(recipes, key=_owner), key=_owner):
        heading(owner)
        entries([(recipe["name"], _lines(recipe)) for recipe in group])


def print_plugins(*, as_json: bool) -> None:
    """List every entry point with its owner, whether it loads, and how long that takes."""
    import_module("taskrecipe.core.spec.spec")  # what all plugins build on is not the first one's cost
    plugins = [_plugin(plugin) for plugin in installed().plugins]
    if as_json:
        typer.echo(json.dumps(plugins, indent=2, ensure_ascii=False))
        return
    rows = [("GROUP", "NAME", "FROM", "STATE", "LOAD")]
    rows += [(p["group"], p["name"], _owner(p), p["state"], f"{p['load_ms']:.1f} ms") for p in plugins]
    table(rows)
    for plugin in plugins:
        if plugin["error"]:
            typer.echo()
            paragraph(plugin["error"])


def _owner(plugin: dict[str, Any]) -> str:
    return f"{plugin['distribution']} {plugin['version']}"


def _recipe(name: str, plugin: Plugin) -> dict[str, Any]:
    from taskrecipe.core.cli.card import Card
    from taskrecipe.core.cli.examples import summary

    entry = {"name": name, "distribution": plugin.distribution, "version": plugin.version}
    known: dict[str, Any] = {"description": "", "tasks": [], "metrics": [], "error": None}
    try:
        card = Card(plugin)
        known["description"] = summary(card.recipe)
        known.update(tasks=card.tasks, metrics=card.metric_names())
    except PluginError as error:
        known["error"] = str(error)
    return {**entry, **known}


def _lines(recipe: dict[str, Any]) -> list[str]:
    listed = [f"{label}: {', '.join(recipe[label])}" for label in ("tasks", "metrics") if recipe[label]]
    return [recipe["description"], *listed, f"broken: {recipe['error']}" if recipe["error"] else ""]


def _plugin(plugin: Plugin) -> dict[str, Any]:
    seconds, error = plugin.timed_load()
    rivals = [p for p in installed().plugins if (p.group, p.name) == (plugin.group, plugin.name)]
    return {
        "group": plugin.group,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
        "state": "broken" if error else "ok" if len(rivals) == 1 else f"use {plugin.full_name}",
        "error": str(error) if error else None,
        "load_ms": round(seconds * 1000, 1),
    }
