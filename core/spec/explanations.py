"""Turn pydantic's errors into findings with plain messages and suggestions.

For a value that may have several types pydantic reports one error per type; here they become one finding.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from taskrecipe.plugins.registry import Registry
from taskrecipe.spec.diagnostics import CODES, MOST_PROBLEMS, show_value
from taskrecipe.spec.expectations import Expectation, expected_value, join_words
from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import LONGEST_NAME, KeyPath, dotted_key, has_value, name_key, replace_value
from taskrecipe.spec.layers import Layers
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.table import Table
from taskrecipe.spec.tables import Tables, keys_of
from taskrecipe.spec.unknown_keys import UnknownKeys, table_title
from taskrecipe.system.suggestions import closest


def explain_errors(error: ValidationError, layers: Layers, registry: Registry) -> list[Finding]:
    """Return the findings of a failed validation of the merged values of `layers`."""
    return _Explanation(layers, registry).of(error)


@dataclass(frozen=True)
class _Fault:
    """One of pydantic's errors, with its path in the values."""

    path: KeyPath
    error: ErrorDetails
    at_key: bool
    is_branch: bool
    """Whether it says why only one of several allowed types does not fit."""

    @property
    def kind(self) -> str:
        return self.error["type"]

    @property
    def context(self) -> dict[str, Any]:
        return self.error.get("ctx", {})


class _Explanation:
    def __init__(self, layers: Layers, registry: Registry) -> None:
        self.values, self.registry = layers.values, registry
        self.tables = Tables(layers.values, registry)
        self.unknown_keys = UnknownKeys(layers, self.tables, self._accepts)

    def of(self, error: ValidationError) -> list[Finding]:
        errors = error.errors(include_url=False)[:MOST_PROBLEMS]
        faults = _drop_side_errors([_fault(details, self.values) for details in errors])
        unknown = [self.unknown_keys.explain(fault.path) for fault in faults if fault.kind == "extra_forbidden"]
        meant = {path for finding in unknown for path in finding.spoils}
        missing = [
            self._missing_key(fault.path)
            for fault in faults
            if fault.kind == "missing" and fault.path not in meant  # it is given under a wrong name
        ]
        wrong: dict[tuple[KeyPath, bool], list[_Fault]] = {}
        for fault in faults:
            if fault.kind not in ("extra_forbidden", "missing"):
                wrong.setdefault((fault.path, fault.at_key), []).append(fault)
        return [*unknown, *missing, *(self._wrong_value(group) for group in wrong.values())]

    def _missing_key(self, path: KeyPath) -> Finding:
        table, key = path[:-1], str(path[-1])
        model = self.tables.models.get(table)
        field = keys_of(model).get(key) if model else None
        meaning = f": {field.description}" if field and field.description else ""
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            message = f"the table [{dotted_key(path)}] is missing{meaning}"
        else:
            message = f"{table_title(table)} needs '{key}'{meaning}"
        return Finding(table, "missing-key", message, spoils=(path,))

    def _wrong_value(self, faults: list[_Fault]) -> Finding:
        fault = faults[0]
        path, value = fault.path, fault.error["input"]
        if fault.kind in CODES and "candidates" in fault.context:
            candidates = fault.context["candidates"] if fault.kind.startswith("unknown-") else []
            return Finding(path, fault.kind, fault.context["message"], closest(str(value), candidates))
        if own := next((fault for fault in faults if expected_value(fault.error) is None), None):
            return Finding(path, "invalid-value", f"{name_key(path)}: {_own_message(own)}")
        wanted = [expected for fault in faults if (expected := expected_value(fault.error))]
        code = _worst(wanted)
        what = "the key " if fault.at_key else ""
        right = join_words([one.words for one in wanted], "or")
        message = f"{what}{name_key(path)} must be {right}; found {show_value(value)}"
        return Finding(path, code, message, self._replacement(path, value, wanted), fault.at_key)

    def _replacement(self, path: KeyPath, value: Any, wanted: list[Expectation]) -> str | None:
        """Return the value that was probably meant, if it would be valid."""
        if isinstance(value, str):
            if close := closest(value, [choice for one in wanted for choice in one.choices]):
                return close
            return value.strip() if self._accepts(path, _parse_unquoted(value)) else None
        if isinstance(value, float) and value.is_integer() and self._accepts(path, int(value)):
            return str(int(value))
        return None

    def _accepts(self, path: KeyPath, value: Any) -> bool:
        if value is None:
            return False
        changed = replace_value(self.values, path, value)
        try:
            Spec.model_validate(changed, context={"registry": self.registry})
        except ValidationError as error:
            faults = [_fault(details, changed) for details in error.errors(include_url=False)]
            return not any(fault.path[: len(path)] == path for fault in faults)
        return True


def _fault(error: ErrorDetails, values: dict[str, Any]) -> _Fault:
    """Find the path of an error: pydantic mixes names of types into its own."""
    path: KeyPath = ()
    names_key = error["type"] in ("missing", "extra_forbidden")
    for n, part in enumerate(error["loc"], start=1):
        if has_value(values, (*path, part)) or (names_key and n == len(error["loc"])):
            path += (part,)
    if "discriminator" in error.get("ctx", {}):
        path += (str(error["ctx"]["discriminator"]).strip("'"),)
    return _Fault(path, error, error["loc"][-1:] == ("[key]",), len(path) < len(error["loc"]))


def _drop_side_errors(faults: list[_Fault]) -> list[_Fault]:
    """Drop errors of other allowed types if the error is inside a value of the right type."""
    inner = {fault.path[:n] for fault in faults for n in range(len(fault.path))}
    return [fault for fault in faults if not (fault.is_branch and fault.path in inner and not fault.at_key)]


def _worst(wanted: list[Expectation]) -> str:
    codes = [one.code for one in wanted]
    return next((code for code in ("out-of-range", "unknown-value") if code in codes), "wrong-type")


def _own_message(fault: _Fault) -> str:
    """Return the message of a model's own validator."""
    return str(fault.context.get("error", fault.error["msg"]))


def _parse_unquoted(text: str) -> Any:
    """Return the number or boolean that `text` is without its quotes; None if it is neither."""
    try:
        value = tomllib.loads(f"value = {text}")["value"] if len(text) <= LONGEST_NAME else None
    except ValueError:
        return None
    return value if isinstance(value, (bool, int, float)) else None
