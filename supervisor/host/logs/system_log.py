"""What programs print, line by line, for the system's log daemons: syslog and the journal.

A log daemon that hangs or is gone never makes a program wait: what does not fit into memory is dropped and counted.
Standard library only, as all that the log keeper is made of.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from supervisor.host.logs import journal, syslog
from supervisor.host.logs.messages import CapturePipe
from supervisor.host.logs.syslog import DatagramSocket
from supervisor.protocol.plurals import counted

LINE_BYTES = 8192  # rsyslog's default; a longer one is cut into several
HELD_BYTES = 1024 * 1024  # for a log daemon that is away, as for a disk that hangs
PATIENCE_S = 1.0  # for one that does not read
RETRY_S = 1.0  # after that, and where nobody listens

LineFormat = Callable[[bytes, float], bytes]
"""Makes the datagram for a line, printed at a Unix time."""


def line_formats(take: CapturePipe) -> list[tuple[str, LineFormat]]:
    """Where a pipe's lines go besides its file: addresses, each with the form that is spoken there."""
    found: list[tuple[str, LineFormat]] = []
    if take.syslog:
        tag = syslog.identifier(take.program)
        found.append((take.syslog, lambda line, wall_at: syslog.datagram(tag, line, wall_at)))
    if take.journal:
        fields = {
            "PRIORITY": str(syslog.INFO),
            "SYSLOG_IDENTIFIER": take.program,
            "PROGRAM": take.program,
            "JOB": take.program,
            "ATTEMPT": str(take.attempt),
            "STEPKEEPER_STREAM": take.channel,
        }
        found.append((take.journal, lambda line, _: _entry(line, fields)))
    return found


def _entry(line: bytes, fields: dict[str, str]) -> bytes:
    return journal.entry({"MESSAGE": line.decode(errors="replace"), **fields}.items())


class SystemLogSender:
    """The way to one log daemon, with a thread of its own. `ring` is called from it when `trouble` has changed."""

    def __init__(self, address: str, ring: Callable[[], None]) -> None:
        self.trouble = ""
        self._address = Path(address)
        self._ring = ring
        self._changed = threading.Condition()
        self._waiting: deque[tuple[LineFormat, bytes, float]] = deque()
        self._held_bytes = 0
        self._lost = 0
        self._is_sending = False
        threading.Thread(target=self._run, name=address, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether all is sent, or can't be at present."""
        with self._changed:
            return bool(self.trouble) or not (self._waiting or self._is_sending)

    def put(self, message: LineFormat, line: bytes) -> None:
        """Has a line sent; drops it if too much waits already."""
        with self._changed:
            if self._held_bytes + len(line) > HELD_BYTES:
                self._lost += 1
                return
            self._held_bytes += len(line)
            self._waiting.append((message, line, time.time()))
            self._changed.notify()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        way = DatagramSocket(self._address, PATIENCE_S)
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                message, line, wall_at = self._waiting.popleft()
                self._held_bytes -= len(line)
                self._is_sending = True
            self._deliver(way, message, line, wall_at)
            with self._changed:
                self._is_sending = False
                lost, self._lost = self._lost, 0
            if lost:
                told = f"stepkeeper dropped {counted(lost, 'line')} of all programs: the log did not take them in time"
                self._deliver(way, message, told.encode(), time.time())
            self._ring_at_end()

    def _deliver(self, way: DatagramSocket, message: LineFormat, line: bytes, wall_at: float) -> None:
        """Tries until it is taken, or will never be."""
        while True:
            try:
                way.send(message(line, wall_at))
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self._say("")
                    return
                why = syslog.describe_failure(error, self._address)
                self._say(f"cannot log: {why}; what does not fit into memory is dropped")
                time.sleep(RETRY_S)
            else:
                self._say("")
                return

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self.trouble = trouble
            self._ring()

    def _ring_at_end(self) -> None:
        """Whoever waits for the last line looks again."""
        if self.is_idle:
            self._ring()


class LineSplitter:
    """Cuts what comes out of one pipe into lines and hands each to the log daemons. Belongs to one thread."""

    def __init__(self, ways: list[tuple[SystemLogSender, LineFormat]]) -> None:
        self._ways = ways
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """The next piece."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        for line in lines:
            self._put(line)

    def end(self) -> None:
        """There is no more: what has no line break is a line too."""
        self._put(self._rest)
        self._rest = b""

    def _put(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        for start in range(0, len(line), LINE_BYTES):
            for way, message in self._ways:
                way.put(message, line[start : start + LINE_BYTES])
