"""Messages as lines: a JSON object each, with the name of its class under `type`. The control pipe's are here, too."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from supervisor.protocol.wire.codec import ProtocolError, decode_record, parse_object
from supervisor.protocol.wire.messages import TYPES, Message

MAX_LINE_BYTES = 64 * 1024

Kind = TypeVar("Kind")


class LineCodec(Generic[Kind]):
    """The messages of one conversation. `types`: each class with its name in the lines, of at most `max_bytes`."""

    def __init__(self, types: Mapping[str, type[Kind]], max_bytes: int = MAX_LINE_BYTES) -> None:
        self._types = types
        self._max_bytes = max_bytes
        self._names = {kind: name for name, kind in types.items()}

    def encode(self, message: Kind) -> bytes:
        """One line, newline included. Raises ProtocolError if it is longer than a line may be, or holds NaN."""
        name, fields = self._names[type(message)], asdict(message)  # type: ignore[call-overload]
        try:
            line = json.dumps({"type": name, **fields}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        except ValueError as error:
            raise ProtocolError(f"cannot encode {name}: {error}") from error
        if len(line) > self._max_bytes:
            raise ProtocolError(f"cannot send {name}: {len(line)} bytes, the limit is {self._max_bytes}")
        return line

    def decode(self, line: bytes) -> Kind:
        """The message in one line. Unknown fields are ignored; anything else unexpected raises ProtocolError."""
        body = parse_object(line)
        name: Any = body.get("type")
        kind = self._types.get(name) if isinstance(name, str) else None
        if kind is None:
            raise ProtocolError(f"unknown message type {name!r:.80}")
        return decode_record(body, kind, name)


_CONTROL_PIPE: LineCodec[Message] = LineCodec(TYPES)
encode_message = _CONTROL_PIPE.encode
decode_message = _CONTROL_PIPE.decode


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
        return decode_message(line)
    except ProtocolError as error:
        return error
