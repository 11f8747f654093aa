"""Keys in words, and values that they take."""

from __future__ import annotations

import tomllib
from typing import Annotated, Literal

import pytest
from pydantic import Field, TypeAdapter, create_model

from taskrecipe.cli.help.fields import format_toml, list_keys
from taskrecipe.spec.table import Count, Share, Table

TYPES = {
    "integer >= 1": Count,
    "integer > 2, < 9": Annotated[int, Field(gt=2, lt=9)],
    "integer <= -3": Annotated[int, Field(le=-3)],
    "number >= 0, < 1": Share,
    "number > 0, < 1e-6": Annotated[float, Field(gt=0, lt=1e-6)],
    "number > 5": Annotated[float, Field(gt=5)],
    "number < -5": Annotated[float, Field(lt=-5)],
    "number <= 1e10": Annotated[float, Field(le=1e10)],
    "true or false": bool,
    "text": str,
    '"a" | "b"': Literal["a", "b"],
    '"only"': Literal["only"],
    "list of integer": list[int],
    "list of text or integer": Annotated[list[str | int], Field(min_length=2)],
    "table of number": dict[str, float],
    '"end" or integer >= 1': Literal["end"] | Count,
    "single value": bool | int | float | str,
}


@pytest.mark.parametrize(("words", "kind"), TYPES.items())
def test_a_type_in_words_and_a_value_it_takes(words, kind):
    [key] = list_keys(create_model("Options", __base__=Table, field=(kind, Field(description="It."))))
    assert key.allowed == words
    assert (key.required, key.default, key.description) == (True, None, "It.")
    value = tomllib.loads(f"value = {key.example}")["value"]
    TypeAdapter(kind).validate_python(value, strict=True)


def test_values_are_written_as_toml_on_one_line():
    assert format_toml({"a b": [1, {"c": "x\n"}], "d": True}) == '{"a b" = [1, {c = "x\\n"}], d = true}'
