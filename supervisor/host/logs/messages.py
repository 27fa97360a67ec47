"""The messages between the daemon and its logger: one JSON object in each packet, some with a pipe's reading end.

An upgrade meets the logger of the version before. Of that one the daemon has to understand `LoggerHello`, `CapturePipe`
and `CaptureEnded`, and it has to understand `EndCapture`; to those, fields may be added that have defaults.

Named tuples instead of dataclasses: those import `inspect`, a tenth of the logger's memory.
"""

import json
from typing import Any, NamedTuple, get_args

PACKET_BYTES = 64 * 1024  # a path has at most 4096 bytes, six characters each in JSON


class LogProtocolError(Exception):
    """A packet that is not a message; the text says why."""


class CapturePipe(NamedTuple):
    """Comes with the reading end of a pipe: write what comes out of it to the file at `path`, if that is not empty.

    `id`: the pipe's inode. The daemon hands over a pipe with this message; the logger passes a duplicate of it to the
    next daemon with the same message. `syslog`, `journal`: addresses of the log daemons that get each line too, empty:
    none; `program`, `channel` and `attempt` say whose lines they are. `events`: the daemon gets all that comes out.
    `capture`: the size of Supervisor's capture mode (`capture_mode.py`) in bytes; 0: it is off. `uid`: of the program's
    user, whose file it may be. `prefix`: what is written before each line of the file (`log_input.py`).
    `compress`: whether its backups are compressed.
    """

    id: int
    path: str
    maxbytes: int
    backups: int
    syslog: str = ""
    journal: str = ""
    program: str = ""
    channel: str = ""
    attempt: int = 0
    events: bool = False
    capture: int = 0
    uid: int = 0
    prefix: str = ""
    compress: bool = False


class Rotation(NamedTuple):
    """How a file is rotated: how many backups stay, and whether they are compressed."""

    backups: int
    compress: bool


class ReopenFiles(NamedTuple):
    """To the logger: open all files again by their names."""


class ClearFile(NamedTuple):
    """To the logger: empty a file and delete its backups; answered by `FileCleared` with the same `request`.

    With `rotate` the file becomes the first of `backups` backups instead, `compress`ed or not, and a new one begins.
    """

    request: int
    path: str
    rotate: bool = False
    backups: int = 0
    compress: bool = False


class BeginAttempt(NamedTuple):
    """To the logger: an attempt of a program begins, which writes to the file at `path`; answered by `AttemptBegan`."""

    program: str
    attempt: int
    channel: str
    path: str


class EndCapture(NamedTuple):
    """To the logger: write what you have and exit; `drain`: also what can still be read."""

    drain: bool


class LoggerHello(NamedTuple):
    """From the logger: its first message to every daemon."""

    version: str
    pid: int


class LoggerReady(NamedTuple):
    """From the logger: the daemon now has all pipes that the logger reads."""


class CaptureEnded(NamedTuple):
    """From the logger: nobody holds the pipe's writing end any more, and all that was in it has been read."""

    id: int


class CaptureRefused(NamedTuple):
    """From the logger: it can't read the pipe at present; hand it over again later."""

    id: int
    why: str


class FileCleared(NamedTuple):
    """From the logger: the answer to `ClearFile`; `errno` is 0 if it was done."""

    request: int
    errno: int
    why: str


class AttemptBegan(NamedTuple):
    """From the logger: where the output of an attempt begins, as in `positions.LogPosition`."""

    program: str
    attempt: int
    channel: str
    inode: int
    offset: int
    digest: int
    at_ns: int


class LogFailure(NamedTuple):
    """From the logger: what is wrong with a file or a log daemon; it works again if `text` is empty."""

    path: str
    text: str


class OutputPrinted(NamedTuple):
    """From the logger: what a program printed, in base64, for the listeners of an event type.

    `goes_on`: the next packet has more of the same event.
    """

    event: str
    program: str
    attempt: int
    data: str
    goes_on: bool


class OutputMissed(NamedTuple):
    """From the logger: the number of a program's output events that it dropped because the daemon was too slow."""

    events: int
    program: str = ""


class StillAlive(NamedTuple):
    """From the logger, every few seconds: its main thread is not stuck."""


LoggerMessage = (
    CapturePipe
    | ReopenFiles
    | ClearFile
    | BeginAttempt
    | EndCapture
    | LoggerHello
    | LoggerReady
    | CaptureEnded
    | CaptureRefused
    | FileCleared
    | AttemptBegan
    | LogFailure
    | OutputPrinted
    | OutputMissed
    | StillAlive
)

_TYPES: dict[str, type[LoggerMessage]] = {kind.__name__.lower(): kind for kind in get_args(LoggerMessage)}


def encode(message: LoggerMessage) -> bytes:
    """The packet for a message."""
    return json.dumps({"type": type(message).__name__.lower(), **message._asdict()}, allow_nan=False).encode()


def decode(packet: bytes) -> LoggerMessage:
    """The message in a packet, without the fields that this version does not know. Raises LogProtocolError."""
    try:
        content = json.loads(packet.decode())
    except (ValueError, RecursionError) as error:
        raise LogProtocolError(f"cannot read a packet of {len(packet)} bytes: {error}") from error
    if not isinstance(content, dict) or not isinstance(name := content.get("type"), str) or name not in _TYPES:
        raise LogProtocolError(f"cannot read a packet: {str(content)[:80]!r} is not a known message")
    kind = _TYPES[name]
    values: dict[str, Any] = {key: content.get(key, kind._field_defaults.get(key)) for key in kind._fields}
    for key, wanted in kind.__annotations__.items():
        if type(values[key]) is not wanted or (wanted is int and values[key] < 0):  # True is an int, but not here
            raise LogProtocolError(f"cannot read a {name} message: its {key} is {values[key]!r:.80}")
    return kind(**values)
