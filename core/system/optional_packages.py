"""Check for optional packages before a run loads anything."""

from importlib.util import find_spec

from taskrecipe.errors import UsageError


def require_package(package: str, *, install: str, wanted_by: str) -> None:
    """Raise `UsageError`, with the command that installs it, if `package` is missing. Imports nothing."""
    if find_spec(package) is None:
        raise UsageError(f"{wanted_by} needs the package {package!r}, which is not installed: pip install '{install}'")
