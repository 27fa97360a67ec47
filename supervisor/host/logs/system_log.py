"""Sends what programs print, line by line, to the system's log daemons: syslog and the journal.

A log daemon that hangs or is gone never makes a program wait: what does not fit into memory is dropped and counted.
Runs in the logger, so it imports the standard library only.
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

LINE_BYTES = 8192  # rsyslog's default; longer lines are cut
HELD_BYTES = 1024 * 1024  # for a log daemon that is away; as for a disk that hangs
SEND_TIMEOUT_S = 1.0  # for a log daemon that does not read
RETRY_S = 1.0  # after a timeout, and where nobody listens

LineFormat = Callable[[bytes, float], bytes]
"""Makes the datagram for a line, printed at a Unix time."""


def line_formats(pipe: CapturePipe) -> list[tuple[str, LineFormat]]:
    """The log daemons that get a pipe's lines: their addresses, each with its format."""
    formats: list[tuple[str, LineFormat]] = []
    if pipe.syslog:
        tag = syslog.identifier(pipe.program)
        formats.append((pipe.syslog, lambda line, wall_at: syslog.datagram(tag, line, wall_at)))
    if pipe.journal:
        fields = {
            "PRIORITY": str(syslog.INFO),
            "SYSLOG_IDENTIFIER": pipe.program,
            "PROGRAM": pipe.program,
            "JOB": pipe.program,
            "ATTEMPT": str(pipe.attempt),
            "STEPKEEPER_STREAM": pipe.channel,
        }
        formats.append(
            (pipe.journal, lambda line, _: journal.entry({"MESSAGE": line.decode(errors="replace"), **fields}.items()))
        )
    return formats


class SystemLogSender:
    """Sends to one log daemon, in a thread of its own, which calls `wake_owner` when `failure` has changed."""

    def __init__(self, address: str, wake_owner: Callable[[], None]) -> None:
        self.failure = ""
        self._address = Path(address)
        self._wake_owner = wake_owner
        self._changed = threading.Condition()
        self._waiting: deque[tuple[LineFormat, bytes, float]] = deque()
        self._held_bytes = 0
        self._dropped_lines = 0
        self._is_sending = False
        threading.Thread(target=self._run, name=address, daemon=True).start()

    @property
    def is_idle(self) -> bool:
        """Whether everything is sent, or can't be sent at present."""
        with self._changed:
            return bool(self.failure) or not (self._waiting or self._is_sending)

    def queue_line(self, message: LineFormat, line: bytes) -> None:
        """Queues a line; drops it if the memory for waiting lines is full."""
        with self._changed:
            if self._held_bytes + len(line) > HELD_BYTES:
                self._dropped_lines += 1
                return
            self._held_bytes += len(line)
            self._waiting.append((message, line, time.time()))
            self._changed.notify()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        log_socket = DatagramSocket(self._address, SEND_TIMEOUT_S)
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                message, line, wall_at = self._waiting.popleft()
                self._held_bytes -= len(line)
                self._is_sending = True
            self._deliver(log_socket, message, line, wall_at)
            with self._changed:
                self._is_sending = False
                lost, self._dropped_lines = self._dropped_lines, 0
            if lost:
                text = f"stepkeeper dropped {counted(lost, 'line')} of all programs: the log daemon was too slow"
                self._deliver(log_socket, message, text.encode(), time.time())
            if self.is_idle:  # the owner may be waiting for the last line
                self._wake_owner()

    def _deliver(self, log_socket: DatagramSocket, message: LineFormat, line: bytes, wall_at: float) -> None:
        """Tries until the line is accepted, or is known to be too long."""
        while True:
            try:
                log_socket.send(message(line, wall_at))
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    self._set_failure("")
                    return
                why = syslog.describe_failure(error, self._address)
                self._set_failure(f"cannot log: {why}; what does not fit into memory is dropped")
                time.sleep(RETRY_S)
            else:
                self._set_failure("")
                return

    def _set_failure(self, failure: str) -> None:
        if failure != self.failure:
            self.failure = failure
            self._wake_owner()


class LineSplitter:
    """Cuts what comes out of one pipe into lines and passes each to the log daemons. Belongs to one thread."""

    def __init__(self, destinations: list[tuple[SystemLogSender, LineFormat]]) -> None:
        self._destinations = destinations
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Passes on the lines that the next piece completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_BYTES:
            lines.append(self._rest[:LINE_BYTES])
            self._rest = self._rest[LINE_BYTES:]
        for line in lines:
            self._send_line(line)

    def end(self) -> None:
        """Ends the output: what has no line break is a line too."""
        self._send_line(self._rest)
        self._rest = b""

    def _send_line(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        for start in range(0, len(line), LINE_BYTES):
            for sender, line_format in self._destinations:
                sender.queue_line(line_format, line[start : start + LINE_BYTES])
