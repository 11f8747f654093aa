"""Say in words what a value must be, from the type of pydantic's error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails

from taskrecipe.spec.submission import PATTERNS
from taskrecipe.spec.table import URL


@dataclass(frozen=True)
class Expectation:
    """What a value must be: a noun phrase, the code of the problem if it is not, and the choices if there are any."""

    words: str
    code: str = "wrong-type"
    choices: tuple[str, ...] = ()


def expected_value(error: ErrorDetails) -> Expectation | None:
    """Return what the value must be; None if only the error's own message says so."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _TYPES:
        return Expectation(_TYPES[kind])
    if kind in _BOUNDS:
        return Expectation(_BOUNDS[kind](context), "out-of-range")
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        return Expectation(expected, "unknown-value", tuple(re.findall(r"'([^']*)'", expected)))
    return None


def join_words(words: Iterable[str], last: str) -> str:
    """Join words to `a, b or c`."""
    unique = list(dict.fromkeys(words))
    return unique[0] if len(unique) == 1 else f"{', '.join(unique[:-1])} {last} {unique[-1]}"


def _elements(number: int) -> str:
    return f"{number} element" + "s" * (number != 1)


_TYPES = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_parsing_size": "an integer of fewer digits",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "string_type": "text",
    "tuple_type": "a list",
}

_TEXTS = {**PATTERNS, URL: "a URL such as 's3://bucket/runs'"}

_BOUNDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "finite_number": lambda _: "a finite number",
    "greater_than": lambda bound: f"a number above {bound['gt']}",
    "greater_than_equal": lambda bound: f"a number of at least {bound['ge']}",
    "less_than": lambda bound: f"a number below {bound['lt']}",
    "less_than_equal": lambda bound: f"a number of at most {bound['le']}",
    "multiple_of": lambda bound: f"a multiple of {bound['multiple_of']}",
    "string_pattern_mismatch": lambda bound: _TEXTS.get(bound["pattern"], f"text that matches {bound['pattern']}"),
    "string_too_long": lambda bound: f"text of at most {bound['max_length']} characters",
    "string_too_short": lambda bound: (
        "text that is not empty" if bound["min_length"] == 1 else f"text of at least {bound['min_length']} characters"
    ),
    "too_long": lambda bound: f"a list of at most {_elements(bound['max_length'])}",
    "too_short": lambda bound: f"a list of at least {_elements(bound['min_length'])}",
}
