"""`recipe show`: a plugin's description, keys and an example; for a recipe also metrics, columns and splits."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Sequence

import typer

from taskrecipe.cli.help.card import Card, Facts
from taskrecipe.cli.help.fields import Key
from taskrecipe.cli.help.layout import print_entries, print_heading, print_paragraph
from taskrecipe.cli.help.plugin_facts import describe_plugin, plugin_example, plugin_header, plugin_keys
from taskrecipe.errors import UsageError
from taskrecipe.plugins.registry import GROUPS, Group, Plugin, installed
from taskrecipe.recipe import Column, Direction
from taskrecipe.system.secrets import to_json
from taskrecipe.system.suggestions import did_you_mean


def show(name: str, group: Group | None = None, *, as_json: bool = False) -> None:
    """Print the description of the plugin called `name`."""
    plugin = _find(name, group)
    if as_json:
        typer.echo(to_json(describe_plugin(plugin), indent=2))
    elif plugin.group == "recipes":
        _show_recipe(Card(plugin))
    else:
        _show_table(plugin)


def _find(name: str, group: Group | None) -> Plugin:
    registry = installed()
    if group:
        return registry.find(group, name)
    short = name.rpartition(":")[2]
    found = [group for group in GROUPS if any(p.name == short for p in registry.plugins if p.group == group)]
    if not found:
        raise _unknown_name(name)
    if len(found) > 1:
        raise UsageError(f"{name!r} is in {' and '.join(found)}; choose one with --group {found[0]}")
    return registry.find(found[0], name)


def _unknown_name(name: str) -> UsageError:
    names = [known for group in GROUPS for known in installed().names(group)]
    hint = did_you_mean(name, names) or "; `recipe list` and `recipe plugins` print the names"
    return UsageError(f"nothing installed is called {name!r}{hint}")


def _show_recipe(card: Card) -> None:
    _print_head(card.plugin, card.recipe)
    _print_keys("[task]", card.options)
    _print_facts("Metrics; the first decides the best checkpoint by default", card, _metrics)
    _print_facts("Columns", card, _columns)
    _print_facts("Splits", card, _splits)
    typer.echo()
    print_heading(f"Example (recipe new {card.plugin.name})")
    typer.echo(textwrap.indent(card.example.rstrip(), "  "))


def _show_table(plugin: Plugin) -> None:
    _print_head(plugin, plugin.load())
    _print_keys(plugin_header(plugin), plugin_keys(plugin))
    typer.echo()
    print_heading("Example")
    typer.echo(textwrap.indent(plugin_example(plugin).rstrip(), "  "))


def _print_head(plugin: Plugin, thing: type) -> None:
    print_heading(f"{plugin.name}: {plugin.group[:-1]} of {plugin.distribution} {plugin.version}")
    for text in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        typer.echo()
        print_paragraph(text)


def _print_keys(title: str, options: Sequence[Key]) -> None:
    typer.echo()
    print_heading(title)
    if not options:
        typer.echo("  it has no keys of its own")
    print_entries([(key.name, [f"{key.allowed}; {key.state}", key.description]) for key in options])


def _print_facts(title: str, card: Card, line: Callable[[Facts], str]) -> None:
    """Print a fact once for all tasks that share it."""
    tasks_of: dict[str, list[str]] = {}
    for task, facts in card.facts.items():
        tasks_of.setdefault(line(facts), []).append(task)
    if not any(tasks_of):
        return
    typer.echo()
    print_heading(title)
    shared = len(tasks_of) == 1
    print_entries([("" if shared else ", ".join(tasks), [text]) for text, tasks in tasks_of.items()])


def _metrics(facts: Facts) -> str:
    words: dict[Direction, str] = {"max": "higher", "min": "lower"}
    return ", ".join(f"{name} ({words[better]} is better)" for name, better in facts.metrics.items())


def _columns(facts: Facts) -> str:
    return "; ".join(f"{name} ({_column_kind(column)}{column.description})" for name, column in facts.columns.items())


def _column_kind(column: Column) -> str:
    kinds = [word for word, applies in (("optional", not column.required), ("target", column.target)) if applies]
    return f"{' '.join(kinds)}: " if kinds else ""


def _splits(facts: Facts) -> str:
    return ", ".join(
        ours if ours == theirs else f"{ours} (in the data: {theirs})" for ours, theirs in facts.splits.items()
    )
