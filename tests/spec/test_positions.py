"""The place of every key and value of a text."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskrecipe.spec.positions import TOP, locate_keys

TEXT = """\
top = 1  # a comment
"qu oted" = 'é' # another
a.b."c.d" = [1, # one
  {x = 2, y.z = "3"}]

[table]
key = \"\"\"two
lines\"\"\"

[ table . "inner" ]
k=1

[[list]]
name = "first"
[list.sub]
deep = true

[[list]]
name = "second"
[[list.more]]
n = 1
[[list.more]]
n = 2
"""


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (("top",), "1"),
        (("qu oted",), "'é'"),
        (("a", "b", "c.d"), "[1, # one"),
        (("a", "b", "c.d", 0), "1"),
        (("a", "b", "c.d", 1), '{x = 2, y.z = "3"}'),
        (("a", "b", "c.d", 1, "x"), "2"),
        (("a", "b", "c.d", 1, "y", "z"), '"3"'),
        (("a",), "a"),
        (("a", "b"), "b"),
        (("table",), "[table]"),
        (("table", "key"), '"""two'),
        (("table", "inner"), '[ table . "inner" ]'),
        (("table", "inner", "k"), "1"),
        (("list",), "[[list]]"),
        (("list", 0), "[[list]]"),
        (("list", 0, "sub"), "[list.sub]"),
        (("list", 0, "sub", "deep"), "true"),
        (("list", 1, "name"), '"second"'),
        (("list", 1, "more", 1, "n"), "2"),
        (("table", "nothing"), "[table]"),
        (("table", "key", "inside"), '"""two'),
    ],
)
def test_of_value(path, shown):
    assert cut(TEXT, locate_keys(TEXT).of_value(path)) == shown


@pytest.mark.parametrize(
    ("path", "line", "shown"),
    [
        (("top",), 1, "top"),
        (("qu oted",), 2, '"qu oted"'),
        (("a", "b", "c.d"), 3, '"c.d"'),
        (("a", "b", "c.d", 1, "y", "z"), 4, "z"),
        (("table", "inner"), 10, '"inner"'),
        (("list",), 13, "list"),
        (("list", 1, "name"), 19, "name"),
        (("a", "b", "c.d", 0), 3, "1"),
    ],
)
def test_of_key(path, line, shown):
    span = locate_keys(TEXT).of_key(path)
    assert span.line == line
    assert cut(TEXT, span) == shown


def test_what_is_nowhere_is_at_the_top():
    assert locate_keys(TEXT).of_value(("nothing", "at", "all")) is TOP


def test_every_value_of_a_text_has_its_place():
    known = locate_keys(TEXT).values
    assert set(known) == set(paths(tomllib.loads(TEXT)))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab.[]{}=\"'\n #,1\\é", max_size=60))
def test_any_text_is_taken(text):
    places = locate_keys(text)
    for path in [*places.keys, *places.values]:
        places.of_key(path)


def paths(value, path=()):
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def cut(text, span):
    return text.split("\n")[span.line - 1][span.column - 1 :][: span.width]
