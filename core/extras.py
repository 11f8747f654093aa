"""Optional packages: asked for before a run loads anything, so that a missing one is told at once."""

from importlib.util import find_spec

from taskrecipe.core.errors import UsageError


def require(package: str, *, install: str, wanted_by: str) -> None:
    """Raise `UsageError`, saying what to install, if `package` is not there; imports nothing."""
    if find_spec(package) is None:
        raise UsageError(f"{wanted_by} needs the package {package!r}, which is not installed: pip install '{install}'")
