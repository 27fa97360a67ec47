"""Messages to JSON lines and back. Bytes from outside are decoded here and nowhere else."""

import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from enum import StrEnum
from typing import Any

from supervisor.protocol.messages import TYPES, Message

MAX_LINE_BYTES = 64 * 1024

_NAMES = {kind: name for name, kind in TYPES.items()}


class ProtocolError(ValueError):
    """A line is not a message: not JSON, too long, of unknown type, or with a field of the wrong kind."""


def encode(message: Message) -> bytes:
    """One line, newline included. Raises ProtocolError if it is longer than MAX_LINE_BYTES or holds NaN."""
    body = {"type": _NAMES[type(message)], **asdict(message)}
    try:
        line = json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except ValueError as error:
        raise ProtocolError(f"cannot encode {body['type']}: {error}") from error
    if len(line) > MAX_LINE_BYTES:
        raise ProtocolError(f"cannot send {body['type']}: {len(line)} bytes, the limit is {MAX_LINE_BYTES}")
    return line


def decode(line: bytes) -> Message:
    """The message in one line. Unknown fields are ignored; anything else unexpected raises ProtocolError."""
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a JSON line: {error}: {line[:80]!r}") from error
    if not isinstance(body, dict):
        raise ProtocolError(f"not a JSON object: {line[:80]!r}")
    name = body.get("type")
    kind = TYPES.get(name) if isinstance(name, str) else None
    if kind is None or name is None:
        raise ProtocolError(f"unknown message type {name!r:.80}")
    values: dict[str, Any] = {}
    for field_name, wanted, required in _SHAPES[name]:
        if field_name in body:
            values[field_name] = _convert(body[field_name], wanted, f"{name}.{field_name}")
        elif required:
            raise ProtocolError(f"{name} lacks {field_name!r}")
    return kind(**values)


class Decoder:
    """Cuts a stream of bytes into messages; a bad line costs that line, never the stream."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[Message | ProtocolError]:
        """The whole messages in the stream so far, and a ProtocolError in the place of each bad line."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif len(line) >= MAX_LINE_BYTES:
                yield _too_long()
            elif line.strip():
                yield _decode_or_error(line)
        if len(self._rest) >= MAX_LINE_BYTES:
            if not self._skipping:
                yield _too_long()
            self._rest, self._skipping = b"", True


def _too_long() -> ProtocolError:
    return ProtocolError(f"a line is longer than {MAX_LINE_BYTES} bytes; skipped to the next one")


def _decode_or_error(line: bytes) -> Message | ProtocolError:
    try:
        return decode(line)
    except ProtocolError as error:
        return error


def _shape_of(kind: type[Message]) -> tuple[tuple[str, Any, bool], ...]:
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    )


_SHAPES = {name: _shape_of(kind) for name, kind in TYPES.items()}
"""For each message type: field name, annotated type, whether it must be there."""


def _convert(value: Any, wanted: Any, where: str) -> Any:
    """`value` as the annotated type; JSON has fewer kinds than Python, so lists become tuples and ints floats."""
    origin = typing.get_origin(wanted)
    if origin in (types.UnionType, typing.Union):
        return _convert_optional(value, wanted, where)
    if origin is tuple and isinstance(value, list):
        (item, _) = typing.get_args(wanted)
        return tuple(_convert(each, item, where) for each in value)
    if origin is Mapping and isinstance(value, dict):
        (_, item) = typing.get_args(wanted)
        return {_text(key): _convert(each, item, f"{where}.{key:.40}") for key, each in value.items()}
    if origin in (tuple, Mapping):
        raise ProtocolError(f"{where} is {value!r:.80}, not a {'list' if origin is tuple else 'JSON object'}")
    return _convert_plain(value, wanted, where)


def _convert_optional(value: Any, wanted: Any, where: str) -> Any:
    if value is None:
        return None
    (inner,) = (item for item in typing.get_args(wanted) if item is not type(None))
    return _convert(value, inner, where)


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
    elif issubclass(wanted, StrEnum) and value in tuple(wanted):
        return wanted(value)
    raise ProtocolError(f"{where} is {value!r:.80}, not {wanted.__name__}")


def _text(value: str) -> str:
    """JSON can spell half a surrogate pair, which no file, terminal or database takes: it becomes a question mark."""
    return value.encode("utf-8", "replace").decode()
