"""The JSON Schema of specs, for editors: everything installed is in it, conditional on what a spec names.

The models are the only source: pydantic writes the schema of each table, and what is added here is the choice
between plugins, and `extends`, which makes every required key optional, since the parent may have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, NoDefault, models_json_schema
from pydantic_core import core_schema

from taskrecipe.core.errors import PluginError
from taskrecipe.core.plugins import Optimizer, Schedule
from taskrecipe.core.registry import GROUPS, Group, Registry, installed
from taskrecipe.core.spec.spec import RecipeChoice, Spec

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLUGIN_TABLES: dict[str, Group] = {
    "optimizer": "optimizers",
    "schedule": "schedules",
    "callbacks": "callbacks",
    "track": "trackers",
}
_DEFAULTS: dict[Group, str] = {"optimizers": Optimizer().name, "schedules": Schedule().name}
_CHOICE = "x-recipe-choice"


def build(recipe: str | None = None, registry: Registry | None = None) -> Schema:
    """The schema of whole specs; of those of one recipe if it is named."""
    registry = registry or installed()
    if recipe:
        registry.find("recipes", recipe).load()  # an unknown or broken name is an error, not an empty schema
    catalog = {group: _Choices(registry, group) for group in GROUPS}
    definitions = _definitions(catalog)
    for schema in definitions.values():
        if schema.pop(_CHOICE, False):
            _choose_recipe(schema, catalog["recipes"])
    whole = definitions.pop("Spec")
    if recipe:
        whole["properties"]["recipe"]["enum"] = [recipe]
    _choose_plugins(whole, catalog)
    _allow_extends(whole, definitions, catalog)
    return {"$schema": DIALECT, **whole, "title": "taskrecipe spec", "$defs": definitions}


def of_table(model: type[BaseModel]) -> Schema:
    """The schema of one table by itself, its references resolved by its own `$defs`."""
    return model.model_json_schema(schema_generator=_TomlSchema)


class _TomlSchema(GenerateJsonSchema):
    """Schemas of what a TOML file can say: there is no null in it, and a key needs no title."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> Schema:
        return self.generate_inner(schema["schema"])

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        default = super().get_default_value(schema)
        return NoDefault if default is None or isinstance(default, BaseModel) else default

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}  # a type that no schema can say: its own model still checks it

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        json_schema = super().model_schema(schema)
        if issubclass(schema["cls"], RecipeChoice):
            json_schema[_CHOICE] = True
            json_schema["properties"]["task"]["type"] = "object"
        return json_schema


class _Choices:
    """The plugins of a group that load, as models of their tables, with the names each goes by."""

    def __init__(self, registry: Registry, group: Group) -> None:
        self.names = list(dict.fromkeys([*registry.names(group), *_full_names(registry, group)]))
        self.models: dict[type[BaseModel], list[str]] = {}
        self.refs: dict[type[BaseModel], Schema] = {}
        for name in self.names:
            try:
                plugin = registry.find(group, name).load()
            except PluginError:  # its name stays allowed, and nothing can be said of its table
                continue
            self.models.setdefault(plugin.Options if group == "recipes" else plugin, []).append(name)
        self._default_name = _DEFAULTS.get(group)

    @property
    def default(self) -> Schema | None:
        """What is meant by a table that names no plugin, if that has a meaning."""
        return next((dict(self.refs[m]) for m, names in self.models.items() if self._default_name in names), None)

    def keys(self) -> list[str]:
        """The keys that a table of this group may have, whichever plugin it is for."""
        return sorted({key for model in self.models for key in model.model_fields})


def _full_names(registry: Registry, group: Group) -> list[str]:
    return sorted(plugin.full_name for plugin in registry.plugins if plugin.group == group)


def _definitions(catalog: dict[Group, _Choices]) -> dict[str, Schema]:
    plugins = [model for choices in catalog.values() for model in choices.models]
    models: list[type[BaseModel]] = [Spec, RecipeChoice, *plugins]
    refs, schema = models_json_schema([(model, "validation") for model in models], schema_generator=_TomlSchema)
    for choices in catalog.values():
        choices.refs = {model: dict(refs[model, "validation"]) for model in choices.models}
    return cast("dict[str, Schema]", schema["$defs"])


def _choose_recipe(schema: Schema, recipes: _Choices) -> None:
    """Make `task` what the recipe that is named says."""
    schema["properties"]["recipe"]["enum"] = recipes.names
    cases = []
    for options, names in recipes.models.items():
        then: Schema = {"properties": {"task": dict(recipes.refs[options])}}
        if any(field.is_required() for field in options.model_fields.values()):
            then["required"] = ["task"]
        cases.append(_case("recipe", names, then))
    unnamed = {"properties": {"task": _any_of_these_keys(recipes)}}
    schema["allOf"] = [*cases, _case_without("recipe", unnamed)]


def _choose_plugins(spec: Schema, catalog: dict[Group, _Choices]) -> None:
    """Make `[optimizer]` and its like what the plugin that is named there says."""
    for key, group in PLUGIN_TABLES.items():
        choices = catalog[group]
        table: Schema = {
            "type": "object",
            "properties": {"name": {"enum": choices.names}},
            "required": [] if choices.default else ["name"],
            "allOf": [
                *(_case("name", names, choices.refs[model]) for model, names in choices.models.items()),
                _case_without("name", _any_of_these_keys(choices)),
            ],
        }
        field = spec["properties"][key]
        if field.get("type") == "array":
            field["items"] = table
        else:
            field.update(table)


def _case(key: str, names: Sequence[str], then: Schema) -> Schema:
    return {"if": {"properties": {key: {"enum": names}}, "required": [key]}, "then": then}


def _case_without(key: str, then: Schema) -> Schema:
    return {"if": {"not": {"required": [key]}}, "then": then}


def _any_of_these_keys(choices: _Choices) -> Schema:
    some_are_broken = sum(map(len, choices.models.values())) < len(choices.names)
    return {} if some_are_broken else {"propertyNames": {"enum": choices.keys()}}


def _allow_extends(spec: Schema, definitions: dict[str, Schema], catalog: dict[Group, _Choices]) -> None:
    """Ask for required keys, and take an unnamed plugin for the default, only where there is no parent."""
    needs = _Needs(definitions).take(spec)
    for key, group in PLUGIN_TABLES.items():
        if default := catalog[group].default:
            needs["properties"][key]["allOf"].append(_case_without("name", default))
    spec["properties"]["extends"] = {
        "type": "string",
        "minLength": 1,
        "description": "Another spec, relative to this one; its values hold where this one has none.",
    }
    spec["allOf"].append(_case_without("extends", needs))


class _Needs:
    """Takes `required` out of tables, and makes schemas of what was taken; elements of arrays keep theirs."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self.definitions = definitions
        self.taken: dict[str, Schema] = {}

    def take(self, schema: Schema) -> Schema:
        """Take what `schema` and the tables in it require."""
        need: Schema = {"required": schema.pop("required")} if "required" in schema else {}
        for key, value in schema.get("properties", {}).items():
            if inner := self.take(value):
                need.setdefault("properties", {})[key] = inner
        for case in schema.get("allOf", ()):
            if inner := self.take(case.get("then", {})):
                need.setdefault("allOf", []).append({"if": case["if"], "then": inner})
        for key in ("items", "anyOf", "additionalProperties"):
            self._keep(schema.get(key))
        return need | self._of_reference(schema)

    def _of_reference(self, schema: Schema) -> Schema:
        if "$ref" not in schema:
            return {}
        name = schema["$ref"].rpartition("/")[2]
        if name not in self.taken:
            self.taken[name] = self.definitions[f"{name}.required"] = {}
            self.taken[name].update(self.take(self.definitions[name]))
        return {"$ref": f"{schema['$ref']}.required"}

    def _keep(self, node: Any) -> None:
        """Ask again for what was taken from the definitions that `node` refers to."""
        if isinstance(node, list):
            for element in node:
                self._keep(element)
        elif isinstance(node, dict):
            for value in list(node.values()):
                self._keep(value)
            if need := self._of_reference(node):  # beside a reference, older validators see nothing else
                node["allOf"] = [{"$ref": node.pop("$ref")}, need]
