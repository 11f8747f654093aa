"""What the shell offers for a half-written argument; cheap, since it runs at every press of the tab key."""

from __future__ import annotations

from pathlib import Path


def recipes(incomplete: str) -> list[str]:
    """The installed recipes."""
    from taskrecipe.core.registry import installed

    return [name for name in installed().names("recipes") if name.startswith(incomplete)]


def plugins(incomplete: str) -> list[str]:
    """Everything that `recipe show` takes."""
    from taskrecipe.core.registry import GROUPS, installed

    names = {name for group in GROUPS for name in installed().names(group)}
    return sorted(name for name in names if name.startswith(incomplete))


def specs(incomplete: str) -> list[str]:
    """The TOML files and the folders that begin like this."""
    typed = Path(incomplete)
    folder = typed if incomplete.endswith("/") else typed.parent
    found = [path for path in folder.glob("*") if path.is_dir() or path.suffix == ".toml"]
    names = [f"{path}/" if path.is_dir() else str(path) for path in found]
    return sorted(name for name in names if name.startswith(incomplete))


def keys(incomplete: str) -> list[str]:
    """The tables of a spec and the keys that are in them whatever the recipe is."""
    from pydantic import BaseModel

    from taskrecipe.core.spec.spec import Spec

    tables = {name: field.annotation for name, field in Spec.model_fields.items()}
    inner = [
        f"{name}.{key}"
        for name, model in tables.items()
        if isinstance(model, type) and issubclass(model, BaseModel)
        for key in model.model_fields
    ]
    return sorted(key for key in [*tables, *inner] if key.startswith(incomplete))
