"""A finding is something wrong at a path of a spec; with its position in a file it becomes a `Problem`."""

from __future__ import annotations

from dataclasses import dataclass

from taskrecipe.spec.key_path import KeyPath


@dataclass(frozen=True)
class Finding:
    """Something wrong with the value at `path`."""

    path: KeyPath
    code: str
    message: str
    suggestion: str | None = None
    at_key: bool = False
    """Whether the key is wrong, not the value."""
    spoils: tuple[KeyPath, ...] = ()
    """Other values that can't be checked because of it."""

    @property
    def broken(self) -> tuple[KeyPath, ...]:
        """Return the paths of values that rules must not check."""
        return (self.path, *self.spoils) if self.code != "missing-key" else self.spoils
