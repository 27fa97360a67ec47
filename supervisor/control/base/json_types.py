"""The API's requests and answers are dataclasses; this makes JSON, JSON Schema and checked requests of them.

The types of the fields say what there is to say, once: str, bool, int, float, a StrEnum, another dataclass, `X | None`,
`tuple[X, ...]` (a JSON array) and `Mapping[str, X]` (a JSON object). `Annotated[int, {"minimum": 1}]` adds what a type
can't express, in the words of JSON Schema. In a request, a field with a default may be left out; in an answer every
field is always present.

The wire's codec is for programs, which forgive each other much; here a person is told what to write instead.
"""

import builtins
import collections.abc
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_args, get_origin

from supervisor.control.base.errors import Code, CommandError

Schema = dict[str, Any]
Request = TypeVar("Request")

TEXT: Schema = {"type": "string"}
_PLAIN: Mapping[Any, Schema] = {
    str: TEXT,
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    types.NoneType: {"type": "null"},
}
_EXPECTED: Mapping[Any, str] = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def to_json(content: object) -> bytes:
    """The JSON text of anything that is made of dataclasses, lists and plain values.

    JSON has no words for numbers that are not finite. None should come here; one that does becomes null.
    """
    try:
        return json.dumps(content, default=fields_of, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(content), allow_nan=False).encode()


def _finite(content: Any) -> Any:
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if is_dataclass(content):
        return _finite(fields_of(content))
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    return [_finite(value) for value in content] if isinstance(content, list | tuple) else content


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance by name; unlike `dataclasses.asdict`, without copying what is in them."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def read_request(kind: type[Request], arguments: Mapping[str, Any]) -> Request:
    """The request that a client's arguments make; unknown ones are ignored. Raises CommandError."""
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name in arguments:
            values[field.name] = _checked(field.name, arguments[field.name], field.type)
        elif field.default is MISSING:
            raise CommandError(Code.BAD_ARGUMENTS, f"{field.name} is missing; it has to be {_expected(field.type)}")
    return kind(**values)


def _checked(key: str, value: Any, kind: Any) -> Any:
    """The value as the field's type has it. Raises CommandError."""
    plain, limits = _unwrapped(kind)
    if value is None and plain is not kind and _is_optional(kind):
        return None
    if isinstance(plain, type) and issubclass(plain, StrEnum) and value in tuple(plain):
        return plain(value)
    if get_origin(plain) is tuple and isinstance(value, list):
        return tuple(_checked(f"an item of {key}", item, get_args(plain)[0]) for item in value)
    accepted = (int, float) if plain is float else plain
    is_right = plain in _PLAIN and isinstance(value, accepted) and (plain is bool or not isinstance(value, bool))
    if not is_right or not _is_within(value, limits):
        raise CommandError(Code.BAD_ARGUMENTS, f"{key} is {value!r:.80}; it has to be {_expected(kind)}")
    return float(value) if plain is float else value


def _unwrapped(kind: Any) -> tuple[Any, Schema]:
    """The type without `Annotated` and `| None`, and the limits that `Annotated` gives."""
    limits: Schema = {}
    while True:
        if get_origin(kind) is Annotated:
            kind, limits = kind.__origin__, kind.__metadata__[0]
        elif _is_optional(kind):
            (kind,) = (word for word in get_args(kind) if word is not types.NoneType)
        else:
            return kind, limits


def _is_optional(kind: Any) -> bool:
    inner = kind.__origin__ if get_origin(kind) is Annotated else kind
    return get_origin(inner) is types.UnionType and types.NoneType in get_args(inner)


def _is_within(value: Any, limits: Schema) -> bool:
    if value != value:  # NaN, which Python's JSON accepts
        return False
    return (
        value >= limits.get("minimum", value)
        and value <= limits.get("maximum", value)
        and ("exclusiveMinimum" not in limits or value > limits["exclusiveMinimum"])
    )


def _expected(kind: Any) -> str:
    """The kind of value in words, for an error."""
    plain, limits = _unwrapped(kind)
    if isinstance(plain, type) and issubclass(plain, StrEnum):
        return f"one of {', '.join(plain)}"
    if get_origin(plain) is tuple:
        return "a list of strings"
    limits_text = [
        f"{word} {limits[key]:g}"
        for key, word in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"))
        if key in limits
    ]
    return " ".join([_EXPECTED[plain], " and ".join(limits_text)]).rstrip()


# --- JSON Schema ------------------------------------------------------------------------------------------------------


def request_schema(kind: Any) -> Schema:
    """The schema of a request: fields with a default may be left out. None: a command without arguments."""
    described: list[Field[Any]] = list(fields(kind)) if kind is not None else []
    schema: Schema = {"type": "object", "properties": {field.name: _with_default(field) for field in described}}
    required = [field.name for field in described if field.default is MISSING]
    return {**schema, "required": required} if required else schema


def _with_default(field: Field[Any]) -> Schema:
    schema = schema_of(field.type)
    return schema if field.default in (MISSING, None) else {**schema, "default": field.default}


def schema_of(kind: Any) -> Schema:
    """The schema of an answer, or of anything in it. Raises TypeError for a type that answers can't hold."""
    if get_origin(kind) is Annotated:
        (limits, *_) = kind.__metadata__
        return {**schema_of(kind.__origin__), **(limits if isinstance(limits, Mapping) else {})}
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if is_dataclass(kind):
        return object_(**{field.name: schema_of(field.type) for field in fields(kind)})
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return {"type": "string", "enum": [str(enum) for enum in kind]}
    match get_origin(kind), get_args(kind):
        case (types.UnionType | typing.Union, of):  # the second: of an annotated type and None
            return {"anyOf": [schema_of(member) for member in of]}
        case (collections.abc.Mapping, (_, of)):
            return {"type": "object", "additionalProperties": schema_of(of)}
        case (builtins.tuple, (of, builtins.Ellipsis)):
            return {"type": "array", "items": schema_of(of)}
        case (builtins.tuple, of):
            length = {"maxItems": len(of), "minItems": len(of)}
            return {"type": "array", "prefixItems": [schema_of(item) for item in of], **length}
    raise TypeError(f"no schema for {kind!r}")


def object_(**properties: Schema) -> Schema:
    """An object in which all of these keys are always present."""
    return {"type": "object", "properties": properties, "required": list(properties)}
