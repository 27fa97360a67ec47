"""Supervisor's capture mode: what a program prints between two marks is a message for event listeners, not for its log.

The marks, and the option `stdout_capture_maxbytes`, are Supervisor's (https://supervisord.org/subprocess.html, "Capture
Mode"). Runs in the logger, so it imports the standard library only.
"""

from collections.abc import Iterator

BEGIN = b"<!--XSUPERVISOR:BEGIN-->"
END = b"<!--XSUPERVISOR:END-->"

LOG = "LOG"
COMMUNICATION = "COMMUNICATION"
"""The middle of the event types' names: PROCESS_LOG_STDOUT, PROCESS_COMMUNICATION_STDERR."""
CAPTURED = "CAPTURED"
"""Part of what will be a message: listeners to all output get it, the log does not."""


class CaptureModeParser:
    """Separates what stands between the marks from the rest; of a message it keeps the last `maxbytes`."""

    def __init__(self, maxbytes: int) -> None:
        self._maxbytes = maxbytes
        self._captured: bytearray | None = None  # None: outside the marks
        self._rest = b""  # the end of the last piece, which may be the beginning of a mark

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Parses the next piece of output: yields what is outside the marks (LOG), inside (CAPTURED), and messages."""
        data, self._rest = self._rest + data, b""
        while data:
            mark = BEGIN if self._captured is None else END
            before, separator, after = data.partition(mark)
            if not separator:
                held = _partial_mark_bytes(mark, before)
                before, self._rest = before[: len(before) - held], before[len(before) - held :]
            if self._captured is not None:
                self._captured += before
                del self._captured[: -self._maxbytes]
            if before:
                yield LOG if self._captured is None else CAPTURED, before
            if separator and self._captured is not None:
                yield COMMUNICATION, bytes(self._captured)
                self._captured = None
            elif separator:
                self._captured = bytearray()
            data = after

    def end(self) -> bytes:
        """Ends the output: returns what is left, which is not a message and belongs in the log."""
        left = self._rest if self._captured is None else BEGIN + self._captured + self._rest
        self._captured, self._rest = None, b""
        return bytes(left)


def _partial_mark_bytes(mark: bytes, data: bytes) -> int:
    """How many bytes at the end of `data` may be the beginning of the mark."""
    return next((size for size in range(min(len(mark) - 1, len(data)), 0, -1) if data.endswith(mark[:size])), 0)
