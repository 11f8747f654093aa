"""How a check fails, and what checks of every kind of plugin require."""

from __future__ import annotations

import subprocess
import sys

from taskrecipe.plugins.registry import Group, Registry


def require(condition: object, message: str) -> None:
    """Fail a check with a message."""
    if not condition:
        raise AssertionError(message)


def require_light_import(registry: Registry, group: Group, name: str) -> None:
    """Fail if importing a plugin's module imports torch or the like."""
    target = registry.find(group, name).target.partition(":")[0]
    heavy = "{'torch', 'transformers', 'datasets', 'accelerate', 'evaluate'}"
    path = ":".join(entry for entry in sys.path if entry)
    code = f"import sys; sys.path[:0] = {path!r}.split(':'); import {target}; print(*({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    require(not done.stdout.split(), f"importing {target} imports {done.stdout.strip()}: move it into methods")
