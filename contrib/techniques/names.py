"""Choosing parameters and layers of a model by patterns of their names."""

from __future__ import annotations

from fnmatch import fnmatchcase

from taskrecipe import UsageError


def match_names(pattern: str, known: list[str], kind: str) -> list[str]:
    """Return the names that fit a pattern with *. Raise for one that fits none, with similar names.

    `kind` is what the names are of, for the message: "freeze: no parameter".
    """
    from difflib import get_close_matches

    found = [name for name in known if fnmatchcase(name, pattern)]
    if not found:
        similar = get_close_matches(pattern, known, n=3, cutoff=0.0)
        raise UsageError(f"{kind} is called {pattern!r}; similar names are {', '.join(similar)}")
    return found
