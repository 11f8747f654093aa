"""Describe the keys of a table in words: allowed values, default and meaning, from the table's schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from taskrecipe.spec.schema import Schema, build_table_schema
from taskrecipe.spec.table import LARGEST

_TYPES = {
    "integer": "integer",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "object": "table",
}
_SCALAR = ["true or false", "integer", "number", "text"]


@dataclass(frozen=True)
class Key:
    """One key of a table."""

    name: str
    schema: Schema
    required: bool
    in_optional_table: bool = False

    @property
    def allowed(self) -> str:
        """Return the allowed values, with their bounds."""
        return describe_schema(self.schema)

    @property
    def default(self) -> str | None:
        """Return the default as TOML; None if there is none."""
        return format_toml(self.schema["default"]) if "default" in self.schema else None

    @property
    def state(self) -> str:
        """Say whether the key is required, and its default."""
        if self.required:
            table, _, _ = self.name.rpartition(".")
            return f"required if [{table}] is given" if self.in_optional_table else "required"
        return "optional" if self.default is None else f"default {self.default}"

    @property
    def example(self) -> str:
        """Return an allowed value, as TOML."""
        return format_toml(_smallest(self.schema))

    @property
    def description(self) -> str:
        """Return the meaning of the key."""
        return str(self.schema.get("description", ""))


@cache
def list_keys(model: type[BaseModel]) -> tuple[Key, ...]:
    """Return the keys of a table. Keys of tables inside it are dotted."""
    schema = build_table_schema(model)
    definitions = schema.get("$defs", {})
    return tuple(_keys(_follow_reference(schema, definitions), definitions, ()))


def _keys(
    table: Schema, definitions: dict[str, Schema], above: tuple[str, ...], optional: bool = False
) -> Iterator[Key]:
    for name, schema in table.get("properties", {}).items():
        inner = _follow_reference(schema, definitions)
        path, required = (*above, name), name in table.get("required", ())
        if "properties" in inner and len(path) < 4:  # a recipe inside a recipe has no end
            yield from _keys(inner, definitions, path, optional or not required)
        else:
            yield Key(".".join(path), inner, required, optional)


def _follow_reference(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """Replace a reference by its definition; other entries of the schema stay."""
    if "$ref" not in schema:
        return schema
    others = {key: value for key, value in schema.items() if key != "$ref"}
    return {**definitions[schema["$ref"].rpartition("/")[2]], **others}


def describe_schema(schema: Schema) -> str:
    """Say in words which values a schema allows."""
    if "$ref" in schema:
        return "table"
    if "const" in schema:
        return format_toml(schema["const"])
    if "enum" in schema:
        return " | ".join(format_toml(value) for value in schema["enum"])
    if "anyOf" in schema:
        words = [describe_schema(choice) for choice in schema["anyOf"]]
        return " or ".join(["single value", *words[4:]] if words[:4] == _SCALAR else words)
    kind = schema.get("type", "")
    if kind == "array" and schema.get("items"):
        return f"list of {describe_schema(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"table of {describe_schema(schema['additionalProperties'])}"
    return " ".join([_TYPES.get(kind, "any value"), ", ".join(_bounds(schema))]).rstrip()


def _bounds(schema: Schema) -> list[str]:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    given = {sign: schema[key] for key, sign in signs.items() if schema.get(key, LARGEST) != LARGEST}
    bounds = [f"{sign} {value if isinstance(value, int) else _short(value)}" for sign, value in given.items()]
    return [*bounds, f"like {schema['pattern']}"] if "pattern" in schema else bounds


def _short(number: float) -> str:
    return f"{number:g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")


def format_toml(value: Any) -> str:
    """Format a value as TOML on one line."""
    import tomlkit

    value = as_plain(value)
    if isinstance(value, dict):
        pairs = (f"{tomlkit.key(key).as_string()} = {format_toml(inner)}" for key, inner in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(format_toml(element) for element in value)}]"
    return str(tomlkit.item(value).as_string())


def as_plain(value: Any) -> Any:
    """Return a table as a dictionary of its values that are not None; anything else as it is."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True) if isinstance(value, BaseModel) else value


def _smallest(schema: Schema) -> Any:
    """Return a value that the schema allows."""
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    if "anyOf" in schema:
        return _smallest(schema["anyOf"][0])
    match schema.get("type"):
        case "integer":
            return int(_number(schema))
        case "number":
            return _number(schema)
        case "boolean":
            return False
        case "array":
            return [_smallest(schema.get("items", {}))] * schema.get("minItems", 0)
        case "object":
            return {}
        case _:
            return "change-me"


def _number(schema: Schema) -> float:
    if inclusive := [schema[bound] for bound in ("minimum", "maximum") if bound in schema]:
        return float(inclusive[0])
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return float(low + high) / 2
    return float(high - 1 if high is not None else (low or 0) + 1)
