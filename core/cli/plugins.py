"""`recipe plugins`: every entry point, where it comes from, whether it loads, and how long that takes."""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from typing import Any

import typer

from taskrecipe.cli.help.layout import print_paragraph, print_table
from taskrecipe.errors import PluginError
from taskrecipe.plugins.registry import Plugin, ask_plugins, installed


def print_plugins(*, as_json: bool) -> None:
    """Load every plugin, and print a table of them and the errors of those that fail."""
    import_module("taskrecipe.spec.spec")  # all plugins need it: it must not count for the first one
    plugins = _describe_plugins(installed().plugins)
    if as_json:
        typer.echo(json.dumps(plugins, indent=2))
        return
    rows = [("GROUP", "NAME", "FROM", "STATE", "LOAD")]
    for entry in plugins:
        owner = f"{entry['distribution']} {entry['version']}"
        rows.append((entry["group"], entry["name"], owner, entry["state"], f"{entry['load_ms']:.1f} ms"))
    print_table(rows)
    for entry in plugins:
        if entry["error"]:
            typer.echo()
            print_paragraph(entry["error"])


def _describe_plugins(plugins: list[Plugin]) -> list[dict[str, Any]]:
    owners = Counter((plugin.group, plugin.name) for plugin in plugins)
    answers = ask_plugins(plugins, _load)
    return [
        _describe(plugin, answer, is_alone=owners[plugin.group, plugin.name] == 1)
        for plugin, answer in zip(plugins, answers, strict=True)
    ]


def _load(plugin: Plugin) -> tuple[float, str | None]:
    seconds, error = plugin.time_load()
    return seconds, str(error) if error else None


def _describe(plugin: Plugin, answer: Any, *, is_alone: bool) -> dict[str, Any]:
    seconds, error = (0.0, str(answer)) if isinstance(answer, PluginError) else answer
    return {
        "group": plugin.group,
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "target": plugin.target,
        "contract": plugin.contract,
        "state": "broken" if error else "ok" if is_alone else f"use {plugin.full_name}",
        "error": error,
        "load_ms": round(seconds * 1000, 1),
    }
