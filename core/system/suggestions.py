"""Suggest the name that a misspelled one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

LONGEST_WORD = 64
SIMILARITY = 0.65
"""How similar two names must be, from 0 to 1: one or two wrong letters in a short name."""


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that `word` is probably a misspelling of; upper case and dashes make no difference."""
    from difflib import get_close_matches

    if len(word) > LONGEST_WORD:
        return None
    plain = {_normalize(candidate): candidate for candidate in candidates}
    close = get_close_matches(_normalize(word), plain, n=1, cutoff=SIMILARITY)
    return plain[close[0]] if close else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the end of an error message, `; did you mean 'name'?`, or nothing if no candidate is similar."""
    close = closest(word, candidates)
    return f"; did you mean {close!r}?" if close else ""


def _normalize(word: str) -> str:
    return word.lower().replace("-", "_")
