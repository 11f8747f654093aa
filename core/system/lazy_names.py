"""Doors: packages whose names are imported when they are first used (PEP 562)."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package.

    Its names are those that the stub `__init__.pyi` imports, which is what type checkers and editors read too.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    homes = {name.name: line.module for line in stub.body if isinstance(line, ast.ImportFrom) for name in line.names}

    def get_name(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{home}.{name}") if home == package else getattr(import_module(home), name)

    return get_name, lambda: sorted(homes), sorted(homes)
