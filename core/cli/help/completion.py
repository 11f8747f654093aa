"""Shell completion of arguments. It must be fast: it runs at every press of the tab key."""

from __future__ import annotations

from pathlib import Path


def complete_recipes(incomplete: str) -> list[str]:
    """Return the installed recipes that start like this."""
    from taskrecipe.plugins.registry import installed

    return [name for name in installed().names("recipes") if name.startswith(incomplete)]


def complete_plugins(incomplete: str) -> list[str]:
    """Return the names for `recipe show` that start like this."""
    from taskrecipe.plugins.registry import GROUPS, installed

    names = {name for group in GROUPS for name in installed().names(group)}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_specs(incomplete: str) -> list[str]:
    """Return the TOML files and folders that start like this."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    found = [path for path in folder.glob("*") if path.is_dir() or path.suffix == ".toml"]
    names = [f"{path}/" if path.is_dir() else str(path) for path in found]
    return sorted(name for name in names if name.startswith(incomplete))


def complete_keys(incomplete: str) -> list[str]:
    """Return the tables of a spec, and their keys that don't depend on plugins, that start like this."""
    from taskrecipe.spec.tables import list_spec_keys

    return [key for key in list_spec_keys() if key.startswith(incomplete)]


def complete_pages(incomplete: str) -> list[str]:
    """Return the pages of the guide that start like this."""
    from taskrecipe.cli.guide import read_pages
    from taskrecipe.cli.troubleshooting import code_meanings

    return [name for name in (*read_pages(), *code_meanings()) if name.startswith(incomplete)]
