"""What programs print, for event listeners: each piece of it, and what stands between two marks.

The marks are Supervisor's (its `stdout_capture_maxbytes`). Standard library only, as all that the log keeper is of.
"""

import base64
from collections.abc import Iterator

from supervisor.host.logs.messages import PIECE_BYTES, CapturePipe, OutputPrinted

BEGIN = b"<!--XSUPERVISOR:BEGIN-->"
END = b"<!--XSUPERVISOR:END-->"

LOG = "LOG"
COMMUNICATION = "COMMUNICATION"
"""The middle of the event types' names."""
CAPTURED = "CAPTURED"
"""A piece of what will be a message: for those who listen to all that is printed, and for no log."""


class CaptureModeParser:
    """Tells what stands between the marks from the rest, in whatever pieces it comes. Keeps its last `maxbytes`."""

    def __init__(self, maxbytes: int) -> None:
        self._maxbytes = maxbytes
        self._captured: bytearray | None = None  # None: outside the marks
        self._rest = b""  # the end of the last piece, which may be the beginning of a mark

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """The next piece: what is outside of marks (LOG), inside (CAPTURED), and what stood between two of them."""
        data, self._rest = self._rest + data, b""
        while data:
            mark = BEGIN if self._captured is None else END
            before, found, after = data.partition(mark)
            if not found:
                held = _beginning(mark, before)
                before, self._rest = before[: len(before) - held], before[len(before) - held :]
            if self._captured is not None:
                self._captured += before
                del self._captured[: -self._maxbytes]
            if before:
                yield LOG if self._captured is None else CAPTURED, before
            if found and self._captured is not None:
                yield COMMUNICATION, bytes(self._captured)
                self._captured = None
            elif found:
                self._captured = bytearray()
            data = after

    def end(self) -> bytes:
        """There is no more: what is left is no message, and belongs into the log."""
        left = self._rest if self._captured is None else BEGIN + self._captured + self._rest
        self._captured, self._rest = None, b""
        return bytes(left)


def _beginning(mark: bytes, data: bytes) -> int:
    """How many bytes at the end of the data are the beginning of the mark."""
    return next((size for size in range(min(len(mark) - 1, len(data)), 0, -1) if data.endswith(mark[:size])), 0)


def packets(take: CapturePipe, kind: str, data: bytes) -> list[OutputPrinted]:
    """The messages that carry what came out of a pipe."""
    starts = range(0, max(len(data), 1), PIECE_BYTES)
    return [
        OutputPrinted(
            f"PROCESS_{kind}_{take.channel.upper()}",
            take.program,
            take.attempt,
            base64.b64encode(data[start : start + PIECE_BYTES]).decode(),
            start + PIECE_BYTES < len(data),
        )
        for start in starts
    ]
