"""What the daemon and the log keeper tell each other: one JSON object a packet, some with a pipe's reading end.

Named tuples instead of dataclasses: those import `inspect`, a tenth of the keeper's memory.
"""

import json
from typing import Any, NamedTuple

PACKET_BYTES = 64 * 1024  # a path has at most 4096 bytes, six characters each in JSON
PIECE_BYTES = 32 * 1024  # of what a program printed; a third more in base64


class LogProtocolError(Exception):
    """A packet that is no message; the text says why."""


class CapturePipe(NamedTuple):
    """Comes with the reading end of a pipe: what comes out of it belongs into the file at `path`, if that is not empty.

    `id`: the pipe's inode. The daemon hands over pipes with it; the keeper gives a new daemon duplicates with it.
    `syslog`, `journal`: addresses of the log daemons that get each line too, empty: of none; `program`, `channel` and
    `attempt` say whose lines they are. `events`: the daemon is told all that comes out. `capture`: what stands between
    Supervisor's marks goes to the daemon instead of the logs, the last so many bytes of it; 0: marks mean nothing.
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


class ReopenFiles(NamedTuple):
    """To the keeper: open all files again by their names."""


class ClearFile(NamedTuple):
    """To the keeper: empty a file and delete its backups; the answer is `Cleared` with the same `request`."""

    request: int
    path: str


class EndCapture(NamedTuple):
    """To the keeper: write what you have and end; `drain`: also what can still be read. Never changes its form."""

    drain: bool


class LoggerHello(NamedTuple):
    """The keeper's first word to every daemon. Never changes its form."""

    version: str
    pid: int


class LoggerReady(NamedTuple):
    """From the keeper: this daemon has now been given all pipes that I read."""


class CaptureEnded(NamedTuple):
    """From the keeper: nobody holds the pipe's writing end any more, and all that was in it has been read."""

    id: int


class CaptureRefused(NamedTuple):
    """From the keeper: the pipe can't be taken at present; hand it over again later."""

    id: int
    why: str


class FileCleared(NamedTuple):
    """From the keeper: the answer to `Clear`; `errno` 0 if it was done."""

    request: int
    errno: int
    why: str


class LogFailure(NamedTuple):
    """From the keeper: what is wrong with a file; nothing any more if `text` is empty."""

    path: str
    text: str


class OutputPrinted(NamedTuple):
    """From the keeper: a piece of what a program printed, in base64, for the listeners of an event type.

    `goes_on`: the next packet has more of the same event.
    """

    event: str
    program: str
    attempt: int
    data: str
    goes_on: bool


class OutputMissed(NamedTuple):
    """From the keeper: so many events of `Printed` did not fit into memory, as the daemon did not take them in time."""

    events: int


class StillAlive(NamedTuple):
    """From the keeper, every few seconds: its main thread is not stuck."""


LoggerMessage = (
    CapturePipe
    | ReopenFiles
    | ClearFile
    | EndCapture
    | LoggerHello
    | LoggerReady
    | CaptureEnded
    | CaptureRefused
    | FileCleared
    | LogFailure
    | OutputPrinted
    | OutputMissed
    | StillAlive
)

_TYPES: dict[str, type[LoggerMessage]] = {
    kind.__name__.lower(): kind
    for kind in (
        CapturePipe,
        ReopenFiles,
        ClearFile,
        EndCapture,
        LoggerHello,
        LoggerReady,
        CaptureEnded,
        CaptureRefused,
        FileCleared,
        LogFailure,
        OutputPrinted,
        OutputMissed,
        StillAlive,
    )
}


def encode(message: LoggerMessage) -> bytes:
    """The packet for a message."""
    return json.dumps({"type": type(message).__name__.lower(), **message._asdict()}).encode()


def decode(packet: bytes) -> LoggerMessage:
    """The message in a packet; fields that it does not know are left out. Raises LogProtocolError."""
    try:
        content = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise LogProtocolError(f"cannot read a packet of {len(packet)} bytes: {error}") from error
    if not isinstance(content, dict) or not isinstance(name := content.get("type"), str) or name not in _TYPES:
        raise LogProtocolError(f"cannot read a packet: it is {str(content)[:80]!r}, no message that is known")
    kind = _TYPES[name]
    values: dict[str, Any] = {key: content.get(key, kind._field_defaults.get(key)) for key in kind._fields}
    for key, wanted in kind.__annotations__.items():
        if type(values[key]) is not wanted or (wanted is int and values[key] < 0):  # True is an int, but not here
            raise LogProtocolError(f"cannot read a message {name}: its {key} is {values[key]!r:.80}")
    return kind(**values)
