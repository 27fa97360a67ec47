"""One pipe that the logger reads, and where what comes out of it goes. Standard library only, for the logger."""

import os
import re
import stat
import time
from collections.abc import Iterator

from supervisor.host.logs.capture_mode import COMMUNICATION, LOG, CaptureModeParser
from supervisor.host.logs.files.file_writer import LogFileWriter
from supervisor.host.logs.messages import CapturePipe
from supervisor.host.logs.system_log import LineSplitter


class LogInput:
    """A pipe and its destinations: a file, line by line the system's log daemons, and event listeners."""

    __slots__ = ("_capture", "_lines", "_prefix", "request", "writer")

    def __init__(self, request: CapturePipe, writer: LogFileWriter | None, lines: LineSplitter | None) -> None:
        self.request = request
        self.writer = writer
        self._lines = lines
        self._capture = CaptureModeParser(request.capture) if request.capture else None
        prefix, program, attempt, channel = request.prefix, request.program, request.attempt, request.channel
        self._prefix = LinePrefix(prefix, program, attempt, channel) if prefix else None

    def write(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """Passes a piece of output to file and log daemons; gives those parts of it that event listeners are to get."""
        for kind, piece in self._capture.feed(data) if self._capture is not None else ((LOG, data),):
            if kind == LOG:
                self._log(piece)
            if kind == COMMUNICATION or self.request.events:
                yield (COMMUNICATION if kind == COMMUNICATION else LOG), piece

    def end(self) -> None:
        """Passes on what was held back of an unfinished line, or of what may have been a mark of capture mode."""
        if self._capture is not None and (left := self._capture.end()):
            self._log(left)
        if self._lines is not None:
            self._lines.end()

    def _log(self, data: bytes) -> None:
        if self._lines is not None:
            self._lines.feed(data)
        if self.writer is not None:
            self.writer.write(data if self._prefix is None else self._prefix.add_to(data))


def refusal_of(pipe: CapturePipe, descriptor: int | None) -> str:
    """Why a pipe can't be read; empty if it can."""
    if descriptor is None:
        return "no descriptor arrived; the logger may have reached its limit of open files"
    status = os.fstat(descriptor)
    if not stat.S_ISFIFO(status.st_mode) or status.st_ino != pipe.id:
        return "the descriptor is not that pipe's"
    return ""


class LinePrefix:
    """Puts the prefix of one pipe before its lines, whatever bytes are in them. Belongs to one thread.

    `template`: a text with `{time}`, `{program}`, `{attempt}` and `{channel}`. The time is that of reading, the same
    for all lines that were read together.
    """

    def __init__(self, template: str, program: str, attempt: int, channel: str) -> None:
        words = {"program": program, "attempt": str(attempt), "channel": channel}
        parts = f"{template} ".split("{time}")
        filled = (re.sub(r"\{(program|attempt|channel)\}", lambda found: words[found[1]], each) for each in parts)
        self._parts = [each.encode(errors="replace") for each in filled]  # the time stands between two of them
        self._is_line_start = True

    def add_to(self, data: bytes) -> bytes:
        """The next piece, with the prefix at the start of each line in it; the piece may end within a line."""
        if not data:
            return data
        prefix = _now().join(self._parts) if len(self._parts) > 1 else self._parts[0]
        ends_line = data.endswith(b"\n")
        inside = (data[:-1] if ends_line else data).replace(b"\n", b"\n" + prefix)
        begin, self._is_line_start = (prefix if self._is_line_start else b""), ends_line
        return b"".join((begin, inside, b"\n" if ends_line else b""))


def _now() -> bytes:
    """Local time with milliseconds and the distance from UTC, as RFC 3339 has it."""
    now = time.time()
    local = time.localtime(now)
    zone = time.strftime("%z", local)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', local)}.{int(now % 1 * 1000):03d}{zone[:3]}:{zone[3:]}".encode()
