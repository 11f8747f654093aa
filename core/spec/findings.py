"""What is wrong in a spec's values, before it has a place in a file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taskrecipe.core.spec.keypath import LONGEST_NAME, KeyPath


@dataclass(frozen=True)
class Finding:
    """Something wrong at `path`."""

    path: KeyPath
    code: str
    message: str
    suggestion: str | None = None
    at_key: bool = False
    """Whether it is about the key rather than the value."""
    spoils: tuple[KeyPath, ...] = ()
    """What else nothing can be said about because of it."""

    @property
    def broken(self) -> tuple[KeyPath, ...]:
        """The values that no rule should judge any more."""
        return (self.path, *self.spoils) if self.code != "missing-key" else self.spoils


def nearest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` is probably a misspelling of."""
    from difflib import get_close_matches

    if len(word) > LONGEST_NAME:
        return None
    plain = {_plain(candidate): candidate for candidate in candidates}
    close = get_close_matches(_plain(word), plain, n=1, cutoff=0.65)
    return plain[close[0]] if close else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")
