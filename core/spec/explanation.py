"""Pydantic's errors put in words, with suggestions.

An error of a value that may be one of several things comes from pydantic once for each; here it is one finding.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from taskrecipe.core.registry import Registry
from taskrecipe.core.spec.diagnostics import CODES, MOST_PROBLEMS, shown, visible
from taskrecipe.core.spec.expectations import Expectation, expectation, listed
from taskrecipe.core.spec.findings import Finding, nearest
from taskrecipe.core.spec.keypath import LONGEST_NAME, KeyPath, dotted, holds, named, replaced, value_at
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.spec.table import Table
from taskrecipe.core.spec.tables import Tables, keys_of


def explained(error: ValidationError, values: dict[str, Any], registry: Registry) -> list[Finding]:
    """The findings that a failed validation of `values` comes to."""
    return _Explanation(values, registry).of(error)


@dataclass(frozen=True)
class _Fault:
    """One of pydantic's errors, with the path that it has in the values."""

    path: KeyPath
    error: ErrorDetails
    at_key: bool
    is_branch: bool
    """Whether it is one of several errors, each saying why one of the allowed types does not fit."""

    @property
    def kind(self) -> str:
        return self.error["type"]

    @property
    def context(self) -> dict[str, Any]:
        return self.error.get("ctx", {})


class _Explanation:
    def __init__(self, values: dict[str, Any], registry: Registry) -> None:
        self.values, self.registry = values, registry
        self.tables = Tables(values, registry)

    def of(self, error: ValidationError) -> list[Finding]:
        errors = error.errors(include_url=False)[:MOST_PROBLEMS]
        faults = _without_sidelines([_fault(details, self.values) for details in errors])
        unknown = [self._unknown_key(fault.path) for fault in faults if fault.kind == "extra_forbidden"]
        meant = {path for finding in unknown for path in finding.spoils}
        missing = [
            self._missing_key(fault.path)
            for fault in faults
            if fault.kind == "missing" and fault.path not in meant  # it is there, only under another name
        ]
        wrong: dict[tuple[KeyPath, bool], list[_Fault]] = {}
        for fault in faults:
            if fault.kind not in ("extra_forbidden", "missing"):
                wrong.setdefault((fault.path, fault.at_key), []).append(fault)
        return [*unknown, *missing, *(self._wrong_value(group) for group in wrong.values())]

    def _unknown_key(self, path: KeyPath) -> Finding:
        table, key = path[:-1], str(path[-1])
        model, given = self.tables.models.get(table), value_at(self.values, table)
        homes = [home for home in self.tables.homes(key) if home != table and not holds(self.values, (*home, key))]
        if 0 < len(homes) <= 3:
            places = listed([f"[{dotted(home)}]" if home else "the top, above the first table" for home in homes], "or")
            meant = (*homes[0], key)
            message = f"'{visible(key, LONGEST_NAME)}' belongs {'in' if homes[0] else 'at'} {places}"
            return Finding(path, "wrong-table", message, dotted(meant), True, (meant,))
        known = [name for name in (keys_of(model) if model else ()) if name not in given]
        if not table and isinstance(given[key], str):
            known.append("extends")
        close = nearest(key, known)
        message = f"'{visible(key, LONGEST_NAME)}' is not a key of {self._title(table)}"
        if close:
            return Finding(path, "unknown-key", message, close, True, ((*table, close),))
        return Finding(path, "unknown-key", f"{message}{self._keys(model)}", None, True)

    def _missing_key(self, path: KeyPath) -> Finding:
        table, key = path[:-1], str(path[-1])
        model = self.tables.models.get(table)
        field = keys_of(model).get(key) if model else None
        meaning = f": {field.description}" if field and field.description else ""
        if field and isinstance(field.annotation, type) and issubclass(field.annotation, Table):
            message = f"the table [{dotted(path)}] is missing{meaning}"
        else:
            message = f"{self._title(table)} needs '{key}'{meaning}"
        return Finding(table, "missing-key", message, spoils=(path,))

    def _wrong_value(self, faults: list[_Fault]) -> Finding:
        fault = faults[0]
        path, value = fault.path, fault.error["input"]
        if fault.kind in CODES and "candidates" in fault.context:
            candidates = fault.context["candidates"] if fault.kind.startswith("unknown-") else []
            return Finding(path, fault.kind, fault.context["message"], nearest(str(value), candidates))
        if own := next((fault for fault in faults if expectation(fault.error) is None), None):
            return Finding(path, "invalid-value", f"{named(path)}: {_own_words(own)}")
        wanted = [expected for fault in faults if (expected := expectation(fault.error))]
        code = _worst(wanted)
        what = "the key " if fault.at_key else ""
        message = f"{what}{named(path)} must be {listed([one.words for one in wanted], 'or')}; found {shown(value)}"
        return Finding(path, code, message, self._replacement(path, value, wanted), fault.at_key)

    def _replacement(self, path: KeyPath, value: Any, wanted: list[Expectation]) -> str | None:
        """What was probably meant by a wrong value, if that would be right."""
        if isinstance(value, str):
            if close := nearest(value, [choice for one in wanted for choice in one.choices]):
                return close
            return value.strip() if self._accepts(path, _unquoted(value)) else None
        if isinstance(value, float) and value.is_integer() and self._accepts(path, int(value)):
            return str(int(value))
        return None

    def _accepts(self, path: KeyPath, value: Any) -> bool:
        if value is None:
            return False
        changed = replaced(self.values, path, value)
        try:
            Spec.model_validate(changed, context={"registry": self.registry})
        except ValidationError as error:
            faults = [_fault(details, changed) for details in error.errors(include_url=False)]
            return not any(fault.path[: len(path)] == path for fault in faults)
        return True

    def _title(self, table: KeyPath) -> str:
        return f"[{dotted(table)}]" if table else "the spec"

    def _keys(self, model: type[Table] | None) -> str:
        return f", whose keys are {', '.join(keys_of(model))}" if model and model.model_fields else ""


def _fault(error: ErrorDetails, values: dict[str, Any]) -> _Fault:
    """Find the path of an error: pydantic puts the names of types among the keys that lead to the value."""
    path: KeyPath = ()
    names_key = error["type"] in ("missing", "extra_forbidden")
    for n, part in enumerate(error["loc"], start=1):
        if holds(values, (*path, part)) or (names_key and n == len(error["loc"])):
            path += (part,)
    if "discriminator" in error.get("ctx", {}):
        path += (str(error["ctx"]["discriminator"]).strip("'"),)
    return _Fault(path, error, error["loc"][-1:] == ("[key]",), len(path) < len(error["loc"]))


def _without_sidelines(faults: list[_Fault]) -> list[_Fault]:
    """Leave out why other types don't fit where a problem lies deeper within one that does."""
    inner = {fault.path[:n] for fault in faults for n in range(len(fault.path))}
    return [fault for fault in faults if not (fault.is_branch and fault.path in inner and not fault.at_key)]


def _worst(wanted: list[Expectation]) -> str:
    codes = [one.code for one in wanted]
    return next((code for code in ("out-of-range", "unknown-value") if code in codes), "wrong-type")


def _own_words(fault: _Fault) -> str:
    """What a model's own validator says."""
    return str(fault.context.get("error", fault.error["msg"]))


def _unquoted(text: str) -> Any:
    """The number or truth value that `text` would be without its quotes."""
    try:
        value = tomllib.loads(f"value = {text}")["value"] if len(text) <= LONGEST_NAME else None
    except ValueError:
        return None
    return value if isinstance(value, (bool, int, float)) else None
