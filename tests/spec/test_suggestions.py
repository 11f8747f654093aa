"""Every suggestion, when it is followed, is accepted at that place."""

from __future__ import annotations

import copy
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe.errors import SpecError
from taskrecipe.plugins.registry import installed
from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import remove_values, replace_value, value_at
from taskrecipe.spec.layers import Layers
from taskrecipe.spec.sources import Source
from taskrecipe.spec.validation import validate_layers

BUNDLED = [tomllib.loads(path.read_text()) for path in sorted((Path(__file__).parents[2] / "specs").rglob("*.toml"))]
ABOUT_KEYS = ("unknown-key", "wrong-table")


def findings(values, monkeypatch) -> list[Finding]:
    """What is found in `values`, before it gets a place."""
    seen: list[Finding] = []

    def note(_, found):
        seen.extend(found)
        return SpecError([])

    monkeypatch.setattr("taskrecipe.spec.validation._refuse", note)
    with suppress(SpecError):
        validate_layers(Layers([Source("spec.toml", "", values, Path("/"), "file")]), installed())
    return seen


def leaves(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from leaves(item, (*path, key))


def misspelt(draw: st.DrawFn, word: str) -> str:
    n = draw(st.integers(0, max(0, len(word) - 1)))
    letter = draw(st.sampled_from("abcdefgxyz_0"))
    return draw(
        st.sampled_from(
            [word[:n] + word[n + 1 :], word[:n] + letter + word[n:], word[:n] + word[n : n + 2][::-1] + word[n + 2 :]]
        )
    )


@st.composite
def mistaken(draw: st.DrawFn):
    """A bundled spec with a key or value misspelt, quoted, or put into another table."""
    values = copy.deepcopy(draw(st.sampled_from(BUNDLED)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(leaves(values), key=str)))
        table, key, value = value_at(values, path[:-1]), path[-1], value_at(values, path)
        mistake = draw(st.sampled_from(["key", "value", "quotes", "move"]))
        if mistake == "key" and isinstance(table, dict):
            table[misspelt(draw, key)] = table.pop(key)
        elif mistake == "value" and isinstance(value, str):
            table[key] = misspelt(draw, value)
        elif mistake == "quotes" and isinstance(value, (int, float)):
            table[key] = str(value).lower()
        elif mistake == "move" and isinstance(table, dict):
            tables = [values, *(item for item in values.values() if isinstance(item, dict))]
            draw(st.sampled_from(tables)).setdefault(key, table.pop(key))
    return values


def followed(values, finding: Finding):
    """The values as the suggestion would have them, and the path it leads to."""
    suggestion = finding.suggestion
    if finding.code == "wrong-table":
        target = tuple(suggestion.split("."))
    elif finding.code == "unknown-key" or finding.at_key:
        target = (*finding.path[:-1], suggestion)
    else:
        wants_number = finding.code in ("wrong-type", "uneven-batch")
        new = tomllib.loads(f"x = {suggestion}")["x"] if wants_number else suggestion
        return replace_value(values, finding.path, new), finding.path
    value = value_at(values, finding.path)
    return replace_value(remove_values(values, [finding.path]), target, value), target


@settings(max_examples=300, deadline=None)
@given(values=mistaken())
def test_a_suggestion_that_is_followed_is_accepted(values):
    with pytest.MonkeyPatch.context() as patch:
        for finding in findings(values, patch):
            if finding.suggestion in (None, "extends") or finding.code == "trainer-name":  # it is a whole line
                continue
            better, target = followed(values, finding)
            again = findings(better, patch)
            codes = (
                ABOUT_KEYS if finding.code in ABOUT_KEYS else (finding.code, *ABOUT_KEYS, "wrong-type", "unknown-value")
            )
            assert not [new for new in again if new.path == target and new.code in codes]
