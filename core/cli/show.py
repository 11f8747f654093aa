"""`recipe show`: everything a recipe or another plugin says of itself."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable

import typer

from taskrecipe.core.cli.card import Card, Facts
from taskrecipe.core.cli.fields import Key, keys, toml
from taskrecipe.core.cli.layout import entries, heading, paragraph
from taskrecipe.core.errors import UsageError
from taskrecipe.core.recipe import Direction
from taskrecipe.core.registry import GROUPS, Group, Plugin, installed
from taskrecipe.core.spec.schema import PLUGIN_TABLES


def show(name: str, group: Group | None = None) -> None:
    """Print what the plugin called `name` is, takes and gives."""
    plugin = _find(name, group)
    if plugin.group == "recipes":
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
        raise _unknown(name)
    if len(found) > 1:
        raise UsageError(f"{name!r} is in {' and '.join(found)}; say which by --group {found[0]}")
    return registry.find(found[0], name)


def _unknown(name: str) -> UsageError:
    from difflib import get_close_matches

    names = [known for group in GROUPS for known in installed().names(group)]
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`recipe list` and `recipe plugins` show what is"
    return UsageError(f"nothing installed is called {name!r}; {hint}")


def _show_recipe(card: Card) -> None:
    _print_head(card.plugin, card.recipe)
    _print_keys("[task]", card.options)
    _print_facts("Metrics, the first deciding the best by default", card, _metrics)
    _print_facts("Columns", card, _columns)
    _print_facts("Splits", card, _splits)
    typer.echo()
    heading(f"Example (recipe new {card.plugin.name})")
    typer.echo(textwrap.indent(card.example.rstrip(), "  "))


def _show_table(plugin: Plugin) -> None:
    model = plugin.load()
    key = next(key for key, group in PLUGIN_TABLES.items() if group == plugin.group)
    header = f"[[{key}]]" if plugin.group == "callbacks" else f"[{key}]"
    options = [option for option in keys(model) if option.name != "name"]
    _print_head(plugin, model)
    _print_keys(header, options)
    typer.echo()
    heading("Example")
    typer.echo(f"  {header}\n  name = {toml(plugin.name)}")
    for option in options:
        given = option.example if option.required else option.default
        typer.echo(f"  {'' if option.required else '# '}{option.name} = {given or '…'}")


def _print_head(plugin: Plugin, thing: type) -> None:
    heading(f"{plugin.name}: {plugin.group[:-1]} of {plugin.distribution} {plugin.version}")
    for text in inspect.cleandoc(thing.__doc__ or "").split("\n\n"):
        typer.echo()
        paragraph(text)


def _print_keys(title: str, options: list[Key]) -> None:
    typer.echo()
    heading(title)
    if not options:
        typer.echo("  takes no keys of its own")
    entries([(key.name, [f"{key.allowed}; {key.state}", key.description]) for key in options])


def _print_facts(title: str, card: Card, line: Callable[[Facts], str]) -> None:
    """Print a fact once for all the tasks that share it."""
    tasks_of: dict[str, list[str]] = {}
    for task, facts in card.facts.items():
        tasks_of.setdefault(line(facts), []).append(task)
    if not any(tasks_of):
        return
    typer.echo()
    heading(title)
    shared = len(tasks_of) == 1
    entries([("" if shared else ", ".join(tasks), [text]) for text, tasks in tasks_of.items()])


def _metrics(facts: Facts) -> str:
    words: dict[Direction, str] = {"max": "higher", "min": "lower"}
    return ", ".join(f"{name} ({words[better]} is better)" for name, better in facts.metrics.items())


def _columns(facts: Facts) -> str:
    return "; ".join(
        f"{name} ({'' if column.required else 'optional: '}{column.description})"
        for name, column in facts.columns.items()
    )


def _splits(facts: Facts) -> str:
    return ", ".join(ours if ours == theirs else f"{ours} (as {theirs})" for ours, theirs in facts.splits.items())
