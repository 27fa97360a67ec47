"""JSON to dataclasses and back: messages (`lines.py`), the settings that a worker is started with, and what is kept on
disks.

A class is its own schema: fields are read by their annotations, limits among them (`limits.py`), a field with a default
may be missing, and unknown fields are ignored, so that a newer writer can add some. Bytes from outside are decoded here
and nowhere else.
"""

import contextlib
import json
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

from supervisor.protocol.wire.limits import OutOfLimits

Record = TypeVar("Record")


class ProtocolError(ValueError):
    """Bytes are not a message or a record: not JSON, too long, an unknown type, a field of the wrong type or out of its
    limits."""


def fit_record(record: Record) -> Record:
    """The dataclass with what is out of its field's limits cut, or set to the nearest value inside.

    An entry of a mapping that is out of them is left out.
    """
    values = {name: _fit(getattr(record, name), wanted) for name, wanted, _ in _fields_of(type(record))}
    return replace(record, **values)  # type: ignore[type-var]


def encode_record(record: Any) -> str:
    """A dataclass, or a mapping, as one line of ASCII, without fields that are None by default.

    `decode_record` and `decode_entries` read it back. Raises ValueError for a number that is not finite.
    """
    return json.dumps(to_plain(record), separators=(",", ":"), allow_nan=False)


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in a text. Raises ProtocolError."""
    try:
        body = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}: {text[:80]!r}") from error
    if not isinstance(body, dict):
        raise ProtocolError(f"not a JSON object: {text[:80]!r}")
    return body


def decode_record(body: Mapping[str, Any], kind: type[Record], where: str) -> Record:
    """A dataclass of `kind` from a JSON object. `where`: what errors call it. Raises ProtocolError."""
    values: dict[str, Any] = {}
    for name, wanted, required in _fields_of(kind):
        if name in body:
            values[name] = _convert(body[name], wanted, f"{where}.{name}")
        elif required:
            raise ProtocolError(f"{where} lacks {name!r}")
    return kind(**values)


def decode_stored(body: Mapping[str, Any], kind: type[Record], where: str) -> tuple[Record, tuple[str, ...]]:
    """A dataclass of `kind` from a JSON object that was kept on a disk, and what of it is damaged, in words.

    A damaged field costs that field, which gets its default, and a damaged entry of a mapping that entry. Raises
    ProtocolError if that leaves a field without a value.
    """
    values: dict[str, Any] = {}
    damaged: list[str] = []
    for name, wanted, required in _fields_of(kind):
        if name not in body:
            continue
        value, place = body[name], f"{where}.{name}"
        try:
            if typing.get_origin(_without_limits(wanted)) is Mapping and isinstance(value, dict):
                entries = _whole_entries(value, _without_limits(wanted), place, damaged)
                values[name] = _within_limits(entries, getattr(wanted, "__metadata__", ()), place)
            else:
                values[name] = _convert(value, wanted, place)
        except ProtocolError as error:
            if required:
                raise
            damaged.append(str(error))
    missing = [name for name, _, required in _fields_of(kind) if required and name not in values]
    if missing:
        raise ProtocolError(f"{where} lacks {missing[0]!r}")
    return kind(**values), tuple(damaged)


def decode_entries(body: Mapping[str, Any], wanted: Any, where: str) -> dict[Any, Any]:
    """A mapping of the type `wanted` from a JSON object, without its damaged entries."""
    return _whole_entries(body, wanted, where, [])


def _whole_entries(body: Mapping[str, Any], wanted: Any, where: str, damaged: list[str]) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    for key, entry in body.items():
        try:
            entries |= _convert({key: entry}, wanted, where)
        except ProtocolError as error:
            damaged.append(str(error))
    return entries


_PLAIN = (str, int, float, type(None))
_DEFAULTS: dict[type, tuple[tuple[str, Any], ...]] = {}


def to_plain(value: Any) -> Any:
    """A dataclass, or what is in one, in JSON's types: sets in an order that does not change, paths as text."""
    if isinstance(value, _PLAIN):  # first, as there are most of them: the file of what is wanted has all jobs
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(to_plain(item) for item in value)
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if not is_dataclass(value):
        return str(value) if isinstance(value, Path) else value
    kind: Any = type(value)
    if kind not in _DEFAULTS:
        _DEFAULTS[kind] = tuple((field.name, field.default) for field in fields(kind))
    items = ((name, getattr(value, name), default) for name, default in _DEFAULTS[kind])
    return {name: to_plain(item) for name, item, default in items if not (item is None and default is None)}


_FIELDS: dict[type, tuple[tuple[str, Any, bool], ...]] = {}


def _fields_of(kind: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """For each field of a dataclass: its name, its annotated type, and whether it must be there."""
    if kind not in _FIELDS:
        hints = typing.get_type_hints(kind, include_extras=True)
        _FIELDS[kind] = tuple(
            (field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING)
            for field in fields(kind)
        )
    return _FIELDS[kind]


def _convert(value: Any, wanted: Any, where: str) -> Any:
    """`value` as the annotated type; JSON has fewer types than Python, so lists become tuples and ints floats."""
    if wanted in _NUMBERS_AND_TEXT:  # first, as most fields are
        return _convert_plain(value, wanted, where)
    origin = typing.get_origin(wanted)
    if origin is Annotated:
        return _within_limits(_convert(value, wanted.__origin__, where), wanted.__metadata__, where)
    if origin in (types.UnionType, typing.Union):
        return _convert_union(value, wanted, where)
    if origin is tuple and isinstance(value, list):
        return _convert_tuple(value, typing.get_args(wanted), where)
    if origin is frozenset and isinstance(value, list):
        return frozenset(_convert_tuple(value, (typing.get_args(wanted)[0], ...), where))
    if origin is Mapping and isinstance(value, dict):
        (key_kind, item) = typing.get_args(wanted)
        return {
            _convert(key, key_kind, f"{where}'s {key:.40}"): _convert(each, item, f"{where}.{key:.40}")
            for key, each in value.items()
        }
    if is_dataclass(wanted) and isinstance(wanted, type) and isinstance(value, dict):
        return decode_record(value, wanted, where)
    if origin in (tuple, frozenset, Mapping) or is_dataclass(wanted):
        raise ProtocolError(f"{where} is {value!r:.80}, not a {'list' if origin in _LISTS else 'JSON object'}")
    if origin is typing.Literal:
        if value in typing.get_args(wanted):
            return value
        raise ProtocolError(f"{where} is {value!r:.80}; it can be {', '.join(map(str, typing.get_args(wanted)))}")
    return _convert_plain(value, wanted, where)


_LISTS = (tuple, frozenset)
_NUMBERS_AND_TEXT = (int, float, str)


def _without_limits(wanted: Any) -> Any:
    return wanted.__origin__ if typing.get_origin(wanted) is Annotated else wanted


def _within_limits(value: Any, limits: tuple[Any, ...], where: str) -> Any:
    try:
        for limit in limits:
            limit.check(value)
    except OutOfLimits as error:
        raise ProtocolError(f"{where} {error}") from error
    return value


def _fit(value: Any, wanted: Any) -> Any:
    """The value that is nearest to `value` and within the limits of its annotation."""
    origin = typing.get_origin(wanted)
    if value is None:
        return None
    if origin in (types.UnionType, typing.Union):
        return _fit(value, next(each for each in typing.get_args(wanted) if each is not type(None)))
    if origin is Annotated:
        value = _fit(value, wanted.__origin__)
        for limit in wanted.__metadata__:
            value = limit.fit(value)
        return value
    if origin is tuple:
        return tuple(_fit(each, typing.get_args(wanted)[0]) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return fit_record(value)
    if origin is Mapping:
        kinds = typing.get_args(wanted)
        return {key: each for key, each in value.items() if (_fit(key, kinds[0]), _fit(each, kinds[1])) == (key, each)}
    return value


def _convert_union(value: Any, wanted: Any, where: str) -> Any:
    members = typing.get_args(wanted)
    if value is None and type(None) in members:
        return None
    *others, last = (item for item in members if item is not type(None))
    for each in others:
        with contextlib.suppress(ProtocolError):
            return _convert(value, each, where)
    return _convert(value, last, where)


def _convert_tuple(value: list[Any], items: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if items[-1] is Ellipsis:
        items = (items[0],) * len(value)
    elif len(items) != len(value):
        raise ProtocolError(f"{where} is {value!r:.80}, not a list of {len(items)}")
    return tuple(_convert(each, item, where) for each, item in zip(value, items, strict=True))


def _convert_plain(value: Any, wanted: Any, where: str) -> Any:
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError as error:
            raise ProtocolError(f"{where} is too large") from error
        if math.isfinite(number):
            return number
    elif wanted is int and isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value < 1 << 63:
            return value
    elif wanted is str and isinstance(value, str):
        return _text(value)
    elif wanted is bool and isinstance(value, bool):
        return value
    elif wanted is Path and isinstance(value, str) and _is_path(value):
        return Path(value)
    elif issubclass(wanted, StrEnum) and value in tuple(wanted):
        return wanted(value)
    raise ProtocolError(f"{where} is {value!r:.80}, not {wanted.__name__}")


def _text(value: str) -> str:
    """JSON can spell half a surrogate pair, which no file, terminal or database takes: it becomes a question mark."""
    return value.encode("utf-8", "replace").decode()


def _is_path(value: str) -> bool:
    """A path may hold bytes that are no UTF-8, as Python spells them (PEP 383)."""
    try:
        return bool(value) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False
