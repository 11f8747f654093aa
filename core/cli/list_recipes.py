"""`recipe list`: the installed recipes and techniques. One that fails to load is listed with its error."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import typer

from taskrecipe.cli.help.layout import print_entries, print_heading
from taskrecipe.errors import PluginError
from taskrecipe.plugins.registry import Group, Plugin, ask_plugins, installed


def print_list(*, as_json: bool) -> None:
    """Print the recipes with their tasks and metrics, then the techniques."""
    listed = _describe_plugins([*_named_plugins("recipes"), *_named_plugins("techniques")])
    recipes, techniques = listed["recipes"], listed["techniques"]
    if as_json:
        typer.echo(json.dumps({"recipes": recipes, "techniques": techniques}, indent=2))
        return
    _print_by_owner("Recipes", recipes)
    if techniques:
        typer.echo()
        _print_by_owner("Techniques, for any recipe,", techniques)


def _print_by_owner(title: str, listed: list[dict[str, Any]]) -> None:
    for owner, group in groupby(sorted(listed, key=_owner), key=_owner):
        print_heading(f"{title} of {owner}")
        print_entries([(entry["name"], _lines(entry)) for entry in group])


def _owner(entry: dict[str, Any]) -> str:
    return f"{entry['distribution']} {entry['version']}"


def _named_plugins(group: Group) -> list[tuple[str, Plugin]]:
    registry = installed()
    return [(name, registry.find(group, name)) for name in registry.names(group)]


def _describe_plugins(named: list[tuple[str, Plugin]]) -> dict[str, list[dict[str, Any]]]:
    """Return what is known of each plugin, by group."""
    listed: dict[str, list[dict[str, Any]]] = {"recipes": [], "techniques": []}
    answers = ask_plugins([plugin for _, plugin in named], _describe)
    for (name, plugin), answer in zip(named, answers, strict=True):
        known = {**_unknown(plugin), "error": str(answer)} if isinstance(answer, PluginError) else answer
        entry = {"name": name, "distribution": plugin.distribution, "version": plugin.version, **known}
        listed[plugin.group].append(entry)
    return listed


def _unknown(plugin: Plugin) -> dict[str, Any]:
    """Return the entry of a plugin of which nothing is known yet."""
    lists: dict[str, Any] = {"tasks": [], "metrics": []} if plugin.group == "recipes" else {}
    return {"description": "", **lists, "error": None}


def _describe(plugin: Plugin) -> dict[str, Any]:
    from taskrecipe.cli.help.card import Card
    from taskrecipe.cli.help.examples import summary

    known = _unknown(plugin)
    try:
        known["description"] = summary(plugin.load())
        if plugin.group == "recipes":
            card = Card(plugin)
            known.update(tasks=card.tasks, metrics=card.metric_names())
    except PluginError as error:
        known["error"] = str(error)
    return known


def _lines(entry: dict[str, Any]) -> list[str]:
    facts = [f"{label}: {', '.join(entry[label])}" for label in ("tasks", "metrics") if entry.get(label)]
    return [entry["description"], *facts, f"broken: {entry['error']}" if entry["error"] else ""]
