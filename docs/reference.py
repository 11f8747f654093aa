"""The reference: every table and key of a spec, every plugin, every command, every error code.

All of it is made from the code: pydantic's models, what `recipe show` knows, the options of the commands.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import taskrecipe
from taskrecipe.cli.help.fields import Key, list_keys
from taskrecipe.cli.help.plugin_facts import describe_plugin
from taskrecipe.cli.troubleshooting import troubleshooting_page
from taskrecipe.plugins.registry import Group, Plugin, installed
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.table import Table

DOCS = Path(__file__).parent
BETTER = {"max": "higher is better", "min": "lower is better"}
PLUGIN_KEYS = {
    "task": "See [recipes](recipes.md).",
    "techniques": "A list of tables: see [techniques](techniques.md).",
    "optimizer": "See [optimizers](plugins.md#optimizers).",
    "schedule": "See [schedules](plugins.md#schedules).",
    "callbacks": "A list of tables: see [callbacks](plugins.md#callbacks).",
    "track": "See [trackers](plugins.md#trackers).",
}


def reference_pages() -> dict[str, str]:
    """Return the text of every page of the reference, by its path."""
    pages = {
        "spec": _spec_page(),
        "recipes": _index("recipes", "Recipes", "A recipe is a task. `recipe show NAME` prints the same."),
        "techniques": _index("techniques", "Techniques", "A technique changes how any recipe is trained."),
        "plugins": _plugins_page(),
        "commands": _commands_page(),
        "python": _python_page(),
        "troubleshooting": troubleshooting_page(),
    }
    found = {f"reference/{name}.md": text for name, text in pages.items()}
    for group in ("recipes", "techniques"):
        found |= {f"reference/{group}/{plugin.name}.md": _plugin_page(plugin) for plugin in _own(group)}
    return found


def _own(group: Group) -> list[Plugin]:
    return [plugin for plugin in installed().plugins if plugin.group == group and plugin.is_own]


# A spec ---------------------------------------------------------------------------------------------------


def _spec_page() -> str:
    lines = ["# Spec", ""]
    lines += ["Every table and key of a spec. A key that is not here is an error. `recipe explain SPEC` prints the", ""]
    lines[-2] += " same for one spec, with its values and where each came from."
    lines += ["## At the top", "", *_key_table(_top_keys()), ""]
    for name, model in _own_tables().items():
        lines += [f"## [{name}] {{#{name}}}", "", _meaning(model), "", *_key_table(list_keys(model)), ""]
    lines += ["## Tables of plugins", "", "| table | keys |", "|---|---|"]
    lines += [f"| `{name}` | {Spec.model_fields[name].description} {text} |" for name, text in PLUGIN_KEYS.items()]
    return "\n".join(lines) + "\n"


def _own_tables() -> dict[str, type[Table]]:
    """Return the tables of a spec whose keys don't depend on a plugin."""
    found = {}
    for name, field in Spec.model_fields.items():
        kinds = [one for one in (field.annotation, *get_args(field.annotation)) if isinstance(one, type)]
        tables = [kind for kind in kinds if not get_args(kind) and issubclass(kind, Table)]
        if tables and name not in PLUGIN_KEYS:
            found[name] = tables[0]
    return found


def _top_keys() -> list[Key]:
    inner = {*_own_tables(), *PLUGIN_KEYS}
    return [key for key in list_keys(Spec) if key.name.partition(".")[0] not in inner]


def _meaning(model: type[Table]) -> str:
    text = inspect.cleandoc(model.__doc__ or "").partition("\n")[0]
    text = text.partition("`: ")[2] or text
    return text[:1].upper() + text[1:]


def _key_table(keys: list[Key]) -> Iterator[str]:
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for key in keys:
        default = "**required**" if key.required else f"`{_cell(key.default)}`" if key.default else "–"
        yield f"| `{key.name}` | {_cell(key.allowed)} | {default} | {_cell(key.description)} |"


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|").replace("\n", " ")


# Plugins --------------------------------------------------------------------------------------------------


def _index(group: Group, title: str, text: str) -> str:
    lines = [f"# {title}", "", text, "", f"| {group[:-1]} | what it is |", "|---|---|"]
    for plugin in _own(group):
        summary = inspect.cleandoc(plugin.load().__doc__ or "").partition("\n")[0]
        lines.append(f"| [`{plugin.name}`]({group}/{plugin.name}.md) | {_cell(summary)} |")
    return "\n".join(lines) + "\n"


def _plugin_page(plugin: Plugin) -> str:
    """Return the page of a recipe or technique: the paragraph in docs/recipes, a picture, and what `show` knows."""
    known = describe_plugin(plugin)
    by_hand = DOCS / plugin.group / f"{plugin.name}.md"
    lines = [f"# {plugin.name}", "", known["description"], "", by_hand.read_text(encoding="utf-8").strip(), ""]
    if plugin.group == "recipes":
        picture = f"../../pictures/previews/{plugin.name}.png"
        lines += [f"![Rows of {plugin.name} as the model sees them]({picture})", ""]
        lines += [f"A part of `recipe preview` of its sample data: `recipe new {plugin.name}`, then "]
        lines[-1] += f"`recipe preview {plugin.name}.toml --sample --html preview.html`."
        lines.append("")
    lines += [f"## Keys of {known['table']} {{#keys}}", "", *_described_keys(known), ""]
    lines += [*_facts(known.get("tasks", {})), "## Example", "", "```toml", known["example"].rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _described_keys(known: dict[str, Any]) -> Iterator[str]:
    if not known["keys"]:
        yield "It has no keys of its own."
        return
    yield "| key | allowed | default | meaning |"
    yield "|---|---|---|---|"
    for key in known["keys"]:
        default = "**required**" if key["required"] else f"`{json.dumps(key['default'])}`"
        default = "–" if default == "`null`" else default
        yield f"| `{key['key']}` | {_cell(key['allowed'])} | {_cell(default)} | {_cell(key['meaning'])} |"


def _facts(tasks: dict[str, Any]) -> Iterator[str]:
    """Yield tables of the metrics and columns, each fact once for all tasks that share it."""
    if not tasks:
        return
    for title, line in (("Metrics", _metrics), ("Columns", _columns), ("Splits", _splits)):
        shared: dict[str, list[str]] = {}
        for task, facts in tasks.items():
            shared.setdefault(line(facts), []).append(task)
        if not any(shared):
            continue
        yield from (f"## {title}", "")
        for text, names in shared.items():
            yield f"- {'' if len(shared) == 1 else ', '.join(f'`{name}`' for name in names) + ': '}{text}"
        yield ""


def _metrics(facts: dict[str, Any]) -> str:
    return ", ".join(f"`{name}` ({BETTER[better]})" for name, better in facts["metrics"].items())


def _columns(facts: dict[str, Any]) -> str:
    marks = {name: ("" if one["required"] else ", optional") for name, one in facts["columns"].items()}
    kinds = {name: ", target" if one["target"] else "" for name, one in facts["columns"].items()}
    columns = facts["columns"].items()
    return "; ".join(f"`{name}` ({one['meaning']}{marks[name]}{kinds[name]})" for name, one in columns)


def _splits(facts: dict[str, Any]) -> str:
    return ", ".join(
        f"`{ours}`" + (f" (in the data `{theirs}`)" * (ours != theirs)) for ours, theirs in facts["splits"].items()
    )


def _plugins_page() -> str:
    lines = ["# Optimizers, schedules, callbacks, trackers", ""]
    groups: tuple[Group, ...] = ("optimizers", "schedules", "callbacks", "trackers")
    for group in groups:
        lines += [f"## {group.capitalize()}", ""]
        for plugin in _own(group):
            known = describe_plugin(plugin)
            lines += [f"### {plugin.name} {{#{group}-{plugin.name}}}", "", known["description"], ""]
            lines += [*_described_keys(known), ""]
    return "\n".join(lines) + "\n"


# Commands and Python --------------------------------------------------------------------------------------


def _commands_page() -> str:
    import typer

    from taskrecipe.cli.app import app

    group = typer.main.get_command(app)
    lines = ["# Commands", "", "`recipe COMMAND --help` prints the same.", ""]
    for name, command in group.commands.items():  # type: ignore[attr-defined]
        usage = " ".join(["recipe", name, *(piece for piece in command.collect_usage_pieces(_context(command)))])
        lines += [f"## recipe {name} {{#{name}}}", "", inspect.cleandoc(command.help or ""), "", f"`{usage}`", ""]
        lines += ["| argument or option | meaning |", "|---|---|"]
        for parameter in command.params:
            lines.append(f"| {_parameter(parameter)} | {_cell(getattr(parameter, 'help', '') or '')} |")
        if command.epilog:
            lines += ["", command.epilog]
        lines.append("")
    return "\n".join(lines) + "\n"


def _context(command: Any) -> Any:
    return command.context_class(command, info_name=command.name)


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_cell(parameter.metavar or parameter.name.upper())}`"
    value = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    return f"`{_cell(', '.join(parameter.opts) + value)}`"


def _python_page() -> str:
    """Return the page of the door: every public name with its signature and first sentence."""
    lines = ["# Python", "", "Every name of `taskrecipe`. What is not here is private and may change.", ""]
    lines += ["| name | what it is |", "|---|---|"]
    for name in sorted(taskrecipe.__all__, key=str.lower):
        value = getattr(taskrecipe, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            doc = inspect.cleandoc(value.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
            lines.append(f"| `{name}{_signature(value)}` | {_cell(doc)} |")
    return "\n".join(lines) + "\n"


def _signature(value: Any) -> str:
    if inspect.isclass(value):
        return ""
    parameters = inspect.signature(value).parameters.values()
    return "(" + ", ".join(parameter.name for parameter in parameters) + ")"
