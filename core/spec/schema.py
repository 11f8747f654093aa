"""The JSON Schema of specs, for editors. It covers everything that is installed.

The models are the only source: pydantic writes the schema of each table. Added here are the choice between plugins,
and `extends`, which makes every required key optional, since the parent may have it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, NoDefault, models_json_schema
from pydantic_core import core_schema

from taskrecipe.errors import PluginError
from taskrecipe.plugins.kinds import Optimizer, Schedule
from taskrecipe.plugins.registry import GROUPS, Group, Plugin, Registry, installed
from taskrecipe.spec.spec import RecipeChoice, Spec

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLUGIN_TABLES: dict[str, Group] = {
    "techniques": "techniques",
    "optimizer": "optimizers",
    "schedule": "schedules",
    "callbacks": "callbacks",
    "track": "trackers",
}
_DEFAULTS: dict[Group, str] = {"optimizers": Optimizer().name, "schedules": Schedule().name}
_CHOICE = "x-recipe-choice"


def build_schema(
    recipe: str | None = None,
    registry: Registry | None = None,
    broken: Mapping[Plugin, PluginError] | None = None,
    *,
    part: bool = False,
) -> Schema:
    """Build the schema of specs; if `recipe` is given, of that recipe's specs. Plugins in `broken` are not loaded.

    With `part`, it is the schema of files that other specs extend: they may have any of the keys, and need none.
    """
    registry, broken = registry or installed(), broken or {}
    if recipe:
        plugin = registry.find("recipes", recipe)  # an unknown or broken name is an error, not an empty schema
        if plugin in broken:
            raise broken[plugin]
        plugin.load()
    catalog = {group: _Choices(registry, group, broken) for group in GROUPS}
    definitions = _definitions(catalog)
    for schema in definitions.values():
        if schema.pop(_CHOICE, False):
            _choose_recipe(schema, catalog["recipes"])
    whole = definitions.pop("Spec")
    if recipe:
        whole["properties"]["recipe"]["enum"] = [recipe]
    _choose_plugins(whole, catalog)
    _allow_extends(whole, definitions, catalog)
    if part:
        del whole["allOf"][-1]  # what a file without `extends` needs
    title = "taskrecipe part of a spec" if part else "taskrecipe spec"
    return {"$schema": DIALECT, **whole, "title": title, "$defs": definitions}


def build_table_schema(model: type[BaseModel]) -> Schema:
    """Build the schema of one table, with its own `$defs`."""
    return model.model_json_schema(schema_generator=_TomlSchema)


class _TomlSchema(GenerateJsonSchema):
    """Writes schemas for TOML: without null, and without titles of keys."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> Schema:
        return self.generate_inner(schema["schema"])

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        default = super().get_default_value(schema)
        return NoDefault if default is None or isinstance(default, BaseModel) else default

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}  # no schema can express this type; the model still validates it

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        json_schema = super().model_schema(schema)
        if issubclass(schema["cls"], RecipeChoice):
            json_schema[_CHOICE] = True
            json_schema["properties"]["task"]["type"] = "object"
        return json_schema


class _Choices:
    """The models of a group's plugins that can be loaded, each with its names."""

    def __init__(self, registry: Registry, group: Group, broken: Collection[Plugin]) -> None:
        self.names = list(dict.fromkeys([*registry.names(group), *_full_names(registry, group)]))
        self.models: dict[type[BaseModel], list[str]] = {}
        self.refs: dict[type[BaseModel], Schema] = {}
        for name in self.names:
            try:
                found = registry.find(group, name)
                plugin = None if found in broken else found.load()
            except PluginError:
                plugin = None
            if plugin is not None:  # else its name stays allowed, with any table
                self.models.setdefault(plugin.Options if group == "recipes" else plugin, []).append(name)
        self._default_name = _DEFAULTS.get(group)

    @property
    def default(self) -> Schema | None:
        """Return the schema of a table that names no plugin; None if it must name one."""
        return next((dict(self.refs[m]) for m, names in self.models.items() if self._default_name in names), None)

    def keys(self) -> list[str]:
        """Return every key that a table of this group may have."""
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
    """Make the schema of `[task]` depend on the recipe."""
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
    """Make the schema of `[optimizer]` and the other plugin tables depend on the plugin's name."""
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
    """Require keys, and use the default for an unnamed plugin, only in specs without a parent."""
    needs = _Needs(definitions).take(spec)
    for key, group in PLUGIN_TABLES.items():
        if default := catalog[group].default:
            needs["properties"][key]["allOf"].append(_case_without("name", default))
    spec["properties"]["extends"] = {
        "type": "string",
        "minLength": 1,
        "description": "Another spec, relative to this one. Its values are used where this one has none.",
    }
    spec["allOf"].append(_case_without("extends", needs))


class _Needs:
    """Moves `required` out of tables into separate schemas. Elements of arrays keep theirs."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self.definitions = definitions
        self.taken: dict[str, Schema] = {}

    def take(self, schema: Schema) -> Schema:
        """Move out what `schema` and the tables in it require."""
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
        """Require again what was moved out of the definitions that `node` refers to."""
        if isinstance(node, list):
            for element in node:
                self._keep(element)
        elif isinstance(node, dict):
            for value in list(node.values()):
                self._keep(value)
            if need := self._of_reference(node):  # older validators ignore everything next to a reference
                node["allOf"] = [{"$ref": node.pop("$ref")}, need]
