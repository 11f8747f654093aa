"""Say what was probably meant by a key that its table does not have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from taskrecipe.spec.diagnostics import make_printable
from taskrecipe.spec.expectations import join_words
from taskrecipe.spec.findings import Finding
from taskrecipe.spec.key_path import LONGEST_NAME, KeyPath, dotted_key, has_value, name_key, value_at
from taskrecipe.spec.layers import Layers
from taskrecipe.spec.table import Table
from taskrecipe.spec.tables import Tables, keys_of
from taskrecipe.spec.trainer_names import COUNTERPARTS, NOT_NEEDED
from taskrecipe.system.suggestions import closest

MOST_HOMES = 3
"""A key that more tables have, such as `name`, is not attributed to one of them."""

Accepts = Callable[[KeyPath, Any], bool]
"""Whether a value would be valid at a path."""


class UnknownKeys:
    """Explains unknown keys of a spec.

    Only the layer of the unknown key decides which keys are still free: a key that a parent has can be meant too.
    """

    def __init__(self, layers: Layers, tables: Tables, accepts: Accepts) -> None:
        self.layers, self.tables, self.accepts = layers, tables, accepts

    def explain(self, path: KeyPath) -> Finding:
        """Return the finding for the unknown key at `path`: it is a duplicate, misplaced, the Trainer's or misspelt."""
        return (
            self._duplicate(path) or self._misplaced_key(path) or self._trainer_name(path) or self._misspelt_key(path)
        )

    def _duplicate(self, path: KeyPath) -> Finding | None:
        homes = self._homes(path)
        taken = [home for home in homes if self._is_given(path, (*home, path[-1]))]
        is_duplicate = ("train",) in taken or (0 < len(homes) <= MOST_HOMES and len(taken) == len(homes))
        if not is_duplicate:
            return None
        home = ("train",) if ("train",) in taken else taken[0]
        message = f"{_quote(path)} {self._set_already(home, (*home, path[-1]))}; remove it here"
        return Finding(path, "duplicate-key", message, at_key=True)

    def _misplaced_key(self, path: KeyPath) -> Finding | None:
        homes = [home for home in self._homes(path) if not self._is_given(path, (*home, path[-1]))]
        if not 0 < len(homes) <= MOST_HOMES:
            return None
        places = join_words([f"[{dotted_key(home)}]" if home else "the top of the file" for home in homes], "or")
        meant = (*homes[0], path[-1])
        message = f"{_quote(path)} belongs {'in' if homes[0] else 'at'} {places}"
        return Finding(path, "wrong-table", message, dotted_key(meant), True, (meant,))

    def _trainer_name(self, path: KeyPath) -> Finding | None:
        name = str(path[-1])
        if len(path) > 2:  # within an option of a plugin
            return None
        if name in NOT_NEEDED:
            return Finding(path, "trainer-name", f"{_quote(path)} has no key here: {NOT_NEEDED[name]}", at_key=True)
        meant = tuple(COUNTERPARTS[name].key.split(".")) if name in COUNTERPARTS else ()
        if not meant or not self._is_key(meant):
            return None
        message = f"{_quote(path)} is the Trainer's name of {name_key(meant)}"
        if self._is_given(path, meant):
            message += f", which {self._set_already(meant[:-1], meant)}; remove it here"
            return Finding(path, "trainer-name", message, at_key=True)
        return Finding(path, "trainer-name", message, self._converted(path, meant), True, (meant,))

    def _converted(self, path: KeyPath, meant: KeyPath) -> str | None:
        """Return the line to write instead, if the value can be converted."""
        values = self.layers.values
        value = COUNTERPARTS[str(path[-1])].convert(value_at(values, path), values)
        if value is None or isinstance(value, dict | list) or not self.accepts(meant, value):
            return None
        return f"{dotted_key(meant)} = {json.dumps(value, ensure_ascii=False)}"

    def _misspelt_key(self, path: KeyPath) -> Finding:
        table, key = path[:-1], str(path[-1])
        model = self.tables.models.get(table)
        known = [name for name in (keys_of(model) if model else ()) if not self._is_given(path, (*table, name))]
        if not table and isinstance(value_at(self.layers.values, path), str):
            known.append("extends")
        message = f"{_quote(path)} is not a key of {table_title(table)}"
        if close := closest(key, known):
            return Finding(path, "unknown-key", message, close, True, ((*table, close),))
        return Finding(path, "unknown-key", f"{message}{_list_keys(model)}", None, True)

    def _homes(self, path: KeyPath) -> list[KeyPath]:
        return [home for home in self.tables.homes(str(path[-1])) if home != path[:-1]]

    def _is_given(self, unknown: KeyPath, path: KeyPath) -> bool:
        """Whether the layer that has the unknown key also has a value at `path`."""
        owner = self.layers.owner(unknown)
        return has_value(owner.values if owner else self.layers.values, path)

    def _is_key(self, path: KeyPath) -> bool:
        """Whether the spec has a key at `path`, which may be inside a free table such as `[data.files]`."""
        table = path[:-1] if path[:-1] in self.tables.models else path[:-2]
        return table in self.tables.models and path[len(table)] in keys_of(self.tables.models[table])

    def _set_already(self, table: KeyPath, path: KeyPath) -> str:
        _, span = self.layers.place(path, at_key=True)
        where = f"in [{dotted_key(table)}]" if table else "at the top of the file"
        return f"is set {where} already, line {span.line}"


def table_title(table: KeyPath) -> str:
    """Return a table as messages name it."""
    return f"[{dotted_key(table)}]" if table else "the spec"


def _quote(path: KeyPath) -> str:
    return f"'{make_printable(str(path[-1]), LONGEST_NAME)}'"


def _list_keys(model: type[Table] | None) -> str:
    return f", whose keys are {', '.join(keys_of(model))}" if model and model.model_fields else ""
