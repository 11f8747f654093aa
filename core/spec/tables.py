"""Find the model of each table of a spec, tables of plugins at any depth included, and the values that are paths."""

from __future__ import annotations

from collections.abc import Iterable
from types import UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic.fields import FieldInfo

from taskrecipe.errors import RecipeError
from taskrecipe.plugins.kinds import Callback, Optimizer, Schedule, Technique, Tracker
from taskrecipe.plugins.registry import Group, Registry
from taskrecipe.spec.key_path import KeyPath, remove_values
from taskrecipe.spec.spec import Spec
from taskrecipe.spec.table import PathMark, Table, TaskOptions

_GROUPS: dict[type[Table], Group] = {
    TaskOptions: "recipes",
    Technique: "techniques",
    Optimizer: "optimizers",
    Schedule: "schedules",
    Callback: "callbacks",
    Tracker: "trackers",
}


class Tables:
    """The models of all tables in `values`; a table whose plugin is not installed has none."""

    def __init__(self, values: dict[str, Any], registry: Registry) -> None:
        self.models: dict[KeyPath, type[Table]] = {}
        """The model of each table. The spec's own tables are included even if `values` lacks them."""
        self.paths: dict[KeyPath, PathMark] = {}
        """Each value that is a path."""
        self._registry = registry
        self._table(Spec, {**_absent_tables(), **values}, ())

    def homes(self, key: str) -> list[KeyPath]:
        """Return the tables that have such a key, except those in lists."""
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
        """Record the model or path mark of the value at the end of `path`, an item of `holder`."""
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
        """Return the model of the plugin that the table, or its parent for `[task]`, names; None if not installed."""
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
    """Return the keys of a table, as they are written in a spec."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _absent_tables() -> dict[str, dict[str, Any]]:
    return {key: {} for key, field in Spec.model_fields.items() if _is_table(field.annotation)}


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Table)


def salvage_spec(values: dict[str, Any], broken: Iterable[KeyPath], registry: Registry) -> Spec:
    """Make an unvalidated spec of `values` without the broken ones, so that rules can check the rest."""
    intact = remove_values(values, list(broken))
    return cast("Spec", _construct((), intact, Tables(intact, registry).models))


def _construct(path: KeyPath, value: Any, models: dict[KeyPath, type[Table]]) -> Any:
    if isinstance(value, list):
        return [_construct((*path, index), item, models) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    inner = {key: _construct((*path, key), item, models) for key, item in value.items()}
    return models[path].model_construct(**inner) if path in models else inner


def list_spec_keys() -> list[str]:
    """Return the tables of a spec, and their keys that don't depend on plugins."""
    models = {name: field.annotation for name, field in Spec.model_fields.items()}
    inner = [
        f"{name}.{key}"
        for name, model in models.items()
        if isinstance(model, type) and issubclass(model, Table)
        for key in keys_of(model)
    ]
    return sorted([*models, *inner])
