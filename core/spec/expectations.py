"""What a value must be, in words, by the kind of pydantic's error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pydantic_core import ErrorDetails


@dataclass(frozen=True)
class Expectation:
    """What would have been right: a noun phrase, the code of not being it, and the choices if there are some."""

    words: str
    code: str = "wrong-type"
    choices: tuple[str, ...] = ()


def expectation(error: ErrorDetails) -> Expectation | None:
    """What the value should have been; None if only the error's own message can tell."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in _TYPES:
        return Expectation(_TYPES[kind])
    if kind in _BOUNDS:
        return Expectation(_BOUNDS[kind](context), "out-of-range")
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        expected = str(context.get("expected") or context.get("expected_tags"))
        return Expectation(expected, "unknown-value", tuple(re.findall(r"'([^']*)'", expected)))
    return None


def listed(words: Iterable[str], last: str) -> str:
    """`a, b or c`."""
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

_BOUNDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "finite_number": lambda _: "a finite number",
    "greater_than": lambda bound: f"a number above {bound['gt']}",
    "greater_than_equal": lambda bound: f"a number of at least {bound['ge']}",
    "less_than": lambda bound: f"a number below {bound['lt']}",
    "less_than_equal": lambda bound: f"a number of at most {bound['le']}",
    "multiple_of": lambda bound: f"a multiple of {bound['multiple_of']}",
    "string_pattern_mismatch": lambda bound: f"text that matches {bound['pattern']}",
    "string_too_long": lambda bound: f"text of at most {bound['max_length']} characters",
    "string_too_short": lambda bound: (
        "text that is not empty" if bound["min_length"] == 1 else f"text of at least {bound['min_length']} characters"
    ),
    "too_long": lambda bound: f"a list of at most {_elements(bound['max_length'])}",
    "too_short": lambda bound: f"a list of at least {_elements(bound['min_length'])}",
}
