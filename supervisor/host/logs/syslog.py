"""Lines for the system's log daemon, as it takes them at /dev/log: one datagram a line, in the form of RFC 3164."""

import errno
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

ADDRESS = Path("/dev/log")

USER = 1  # the facility that Supervisor, and every program that names none, uses
INFO = 6
TAG_CHARACTERS = 64  # of an identifier; the form knows 32, every daemon of today takes more

PRIORITIES: Mapping[int, int] = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: INFO,
    logging.DEBUG: 7,
}
"""syslog's numbers for our levels."""


def identifier(program: str) -> str:
    """A program's name as the tag of its lines: a colon, a slash or a bracket would end it."""
    return "".join(each if each.isalnum() or each in "._-" else "." for each in program)[:TAG_CHARACTERS]


def datagram(tag: str, line: bytes, wall_at: float, severity: int = INFO, pid: int | None = None) -> bytes:
    """One line for /dev/log. A NUL would end it there, and a line break begin another one."""
    when = time.strftime("%b %e %H:%M:%S", time.localtime(wall_at))
    who = tag if pid is None else f"{tag}[{pid}]"
    return f"<{USER << 3 | severity}>{when} {who}: ".encode() + line.replace(b"\0", b" ").replace(b"\n", b" ")


class DatagramSocket:
    """A datagram socket to a log daemon that may come, go and be started anew. Belongs to one thread.

    A daemon that does not read is waited for `patience_s` for each message.
    """

    def __init__(self, address: Path, patience_s: float) -> None:
        self._address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(patience_s)

    def send(self, message: bytes) -> None:
        """Hands it over. Raises OSError (TimeoutError too)."""
        self._socket.sendto(message, self._address)

    def close(self) -> None:
        """Gives the socket back."""
        self._socket.close()


def describe_failure(error: OSError, address: Path) -> str:
    """What a failed `send` means, in words."""
    if isinstance(error, TimeoutError):
        return f"{address} does not read"
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return f"nobody listens at {address}"
    return f"{address}: {error.strerror or error}"


class SyslogHandler(logging.Handler):
    """The daemon's own records, rendered by its formatter, as lines of `tag`; what does not get through is dropped."""

    PATIENCE_S = 1.0  # the log's thread must not be held up for long by a log daemon that hangs
    QUIET_S = 10.0  # and not for every record

    def __init__(self, tag: str, address: Path = ADDRESS) -> None:
        super().__init__()
        self._tag = identifier(tag)
        self._way = DatagramSocket(address, self.PATIENCE_S)
        self._not_before = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() < self._not_before:
            return
        severity = next((PRIORITIES[level] for level in sorted(PRIORITIES, reverse=True) if record.levelno >= level), 7)
        try:
            text = self.format(record).encode(errors="backslashreplace")
            self._way.send(datagram(self._tag, text, record.created, severity, os.getpid()))
        except TimeoutError:
            self._not_before = time.monotonic() + self.QUIET_S
        except OSError:
            return  # nobody listens; somebody may at the next record
        except Exception:  # noqa: BLE001 - it can't be worded; as logging's own handlers do, lest it end the thread
            self.handleError(record)

    def close(self) -> None:
        self._way.close()
        super().close()
