"""JSON Schema, as far as the description of the API needs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
WHOLE: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


def object_(**properties: Schema) -> Schema:
    """An object in which all of these keys are always there."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def word_of(words: type[StrEnum]) -> Schema:
    return {"type": "string", "enum": [str(each) for each in words]}


def schema_of(kind: type) -> Schema:
    """The schema of a dataclass as JSON has it: everything in one piece, every field always there."""
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    parts = schema.pop("$defs", {})
    plain: Schema = _plain(schema, parts)
    return plain


def _plain(schema: Any, parts: Mapping[str, Schema]) -> Any:
    """Without references, defaults, and the titles and docstrings that are for readers of the code."""
    if isinstance(schema, list):
        return [_plain(each, parts) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(parts[schema["$ref"].rpartition("/")[2]], parts)
    kept = {
        key: {name: _plain(each, parts) for name, each in value.items()}
        if key == "properties"
        else _plain(value, parts)
        for key, value in schema.items()
        if key not in ("title", "default", "description")
    }
    if "properties" in kept:
        kept["required"] = list(kept["properties"])
    return kept


@dataclass(frozen=True, slots=True)
class Shape:
    """What a command is asked with and gives. `optional`: arguments that may be left out."""

    result: Schema
    required: Mapping[str, Schema] = field(default_factory=dict)
    optional: Mapping[str, Schema] = field(default_factory=dict)

    @property
    def arguments(self) -> Schema:
        """The request's body."""
        schema: Schema = {"type": "object", "properties": {**self.required, **self.optional}}
        return {**schema, "required": list(self.required)} if self.required else schema


def named(result: Schema, **optional: Schema) -> Shape:
    """A command about one program."""
    return Shape(result, {"name": TEXT}, optional)
