"""Notes are Python's warnings, gathered."""

from __future__ import annotations

import warnings

import pytest

from taskrecipe.system.python_warnings import collect_warnings


def test_warnings_are_gathered_once_each() -> None:
    with collect_warnings() as notes:
        for message in ("one", "two", "one"):
            warnings.warn(message, stacklevel=1)
    assert notes == ["one", "two"]


def test_blocks_may_be_nested() -> None:
    with collect_warnings() as outer:
        warnings.warn("before", stacklevel=1)
        with collect_warnings() as inner:
            warnings.warn("within", stacklevel=1)
        warnings.warn("after", stacklevel=1)
    assert (outer, inner) == (["before", "after"], ["within"])


def test_deprecations_go_their_way() -> None:
    with pytest.warns(DeprecationWarning, match="old"), collect_warnings() as notes:
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    assert notes == []


def test_an_error_inside_is_not_held_up() -> None:
    with pytest.raises(ValueError, match="inside"), collect_warnings():
        raise ValueError("inside")
