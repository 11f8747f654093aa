"""Which model checks which table of a spec, plugin tables at any depth included, and which of its texts are paths."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from taskrecipe.core.errors import RecipeError
from taskrecipe.core.plugins import Callback, Optimizer, Schedule, Tracker
from taskrecipe.core.registry import Group, Registry
from taskrecipe.core.spec.keypath import KeyPath, without
from taskrecipe.core.spec.spec import Spec
from taskrecipe.core.spec.table import PathMark, Table, TaskOptions

_GROUPS: dict[type[Table], Group] = {
    TaskOptions: "recipes",
    Optimizer: "optimizers",
    Schedule: "schedules",
    Callback: "callbacks",
    Tracker: "trackers",
}


class Tables:
    """The models of all tables in `values`, as far as it names plugins that are there."""

    def __init__(self, values: dict[str, Any], registry: Registry) -> None:
        self.models: dict[KeyPath, type[Table]] = {}
        """The model of each table; those of the whole spec are there even where the table is not."""
        self.paths: dict[KeyPath, PathMark] = {}
        """Each text that is a path."""
        self._registry = registry
        self._table(Spec, {**_absent_tables(), **values}, ())

    def homes(self, key: str) -> list[KeyPath]:
        """The tables that have such a key; elements of lists are nobody's home."""
        return [
            path
            for path, model in self.models.items()
            if key in keys_of(model) and not any(isinstance(part, int) for part in path)
        ]

    def _table(self, model: type[Table], values: dict[str, Any], path: KeyPath) -> None:
        self.models[path] = model
        for key, field in keys_of(model).items():
            if key in values:
                self._value(field.annotation, field.metadata, values, (*path, key))

    def _value(self, kind: Any, metadata: Any, holder: Any, path: KeyPath) -> None:
        """Note what the value at the end of `path`, an item of `holder`, is by its annotation."""
        value, origin, arguments = holder[path[-1]], get_origin(kind), get_args(kind)
        marks = [mark for mark in metadata if isinstance(mark, PathMark)]
        if marks and isinstance(value, str):
            self.paths[path] = marks[0]
        if origin is Annotated:
            self._value(arguments[0], arguments[1:], holder, path)
        elif origin in (Union, UnionType):
            for argument in arguments:
                self._value(argument, (), holder, path)
        elif arguments and isinstance(value, list):
            for index in range(len(value)):
                self._value(arguments[0], (), value, (*path, index))
        elif len(arguments) == 2 and isinstance(value, dict):
            for key in value:
                self._value(arguments[1], (), value, (*path, key))
        elif _is_table(kind) and isinstance(value, dict) and (model := self._actual(kind, value, holder)):
            self._table(model, value, path)

    def _actual(self, kind: type[Table], value: dict[str, Any], holder: dict[str, Any]) -> type[Table] | None:
        """The model of the plugin that is named in the table, or beside it; None if there is no such plugin."""
        group = _GROUPS.get(kind)
        if group is None:
            return kind
        name = holder.get("recipe") if group == "recipes" else value.get("name", kind.model_fields["name"].default)
        try:
            plugin = self._registry.find(group, name).load() if isinstance(name, str) else None
        except RecipeError:
            return None
        model: type[Table] | None = plugin.Options if plugin and group == "recipes" else plugin
        return model


def keys_of(model: type[Table]) -> dict[str, FieldInfo]:
    """The keys of a table, as they are written in a spec."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _absent_tables() -> dict[str, dict[str, Any]]:
    return {key: {} for key, field in Spec.model_fields.items() if _is_table(field.annotation)}


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Table)


def salvaged(values: dict[str, Any], broken: Iterable[KeyPath], registry: Registry) -> Spec:
    """A spec of what is left of `values` without the broken ones, for rules about the rest: it is not validated."""
    intact = without(values, list(broken))
    return cast("Spec", _construct((), intact, Tables(intact, registry).models))


def _construct(path: KeyPath, value: Any, models: dict[KeyPath, type[Table]]) -> Any:
    if isinstance(value, list):
        return [_construct((*path, index), item, models) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    inner = {key: _construct((*path, key), item, models) for key, item in value.items()}
    return models[path].model_construct(**inner) if path in models else inner
