"""JSON Schema, as far as the description of the API needs it."""

import builtins
import collections.abc
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any, get_args, get_origin

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


def schema_of(kind: Any) -> Schema:
    """The schema of a type as its value is in JSON: of a dataclass in one piece, every field always there.

    Raises TypeError for a type that no answer has had so far.
    """
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if is_dataclass(kind):
        return object_(**{each.name: schema_of(each.type) for each in fields(kind)})
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return word_of(kind)
    match get_origin(kind), get_args(kind):
        case (types.UnionType, of):
            return {"anyOf": [schema_of(each) for each in of]}
        case (collections.abc.Mapping, (_, of)):
            return {"type": "object", "additionalProperties": schema_of(of)}
        case (builtins.tuple, (of, builtins.Ellipsis)):
            return list_of(schema_of(of))
        case (builtins.tuple, of):
            length = {"maxItems": len(of), "minItems": len(of)}
            return {"type": "array", "prefixItems": [schema_of(each) for each in of], **length}
    raise TypeError(f"no schema for {kind!r}")


_PLAIN: Mapping[Any, Schema] = {str: TEXT, bool: FLAG, int: WHOLE, float: NUMBER, types.NoneType: {"type": "null"}}


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
