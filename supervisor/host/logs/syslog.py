"""Lines for the system's log daemon at /dev/log: one datagram a line, in the format of RFC 3164."""

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
SEND_TIMEOUT_S = 1.0  # a log daemon that hangs must not hold up the logging thread for long
PAUSE_S = 10.0  # after a timeout, so that not every record waits
TAG_CHARACTERS = 64  # RFC 3164 allows 32, the log daemons of today accept more

PRIORITIES: Mapping[int, int] = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: INFO,
    logging.DEBUG: 7,
}
"""The severities of syslog by level of Python's logging."""


def identifier(program: str) -> str:
    """A program's name as a tag: a colon, a slash or a bracket would end the tag."""
    name = program[:TAG_CHARACTERS]
    return "".join(character if character.isalnum() or character in "._-" else "." for character in name)


def datagram(tag: str, line: bytes, wall_at: float, severity: int = INFO, pid: int | None = None) -> bytes:
    """One line for /dev/log. NUL and line break become spaces: they would end the line there."""
    when = time.strftime("%b %e %H:%M:%S", time.localtime(wall_at))
    who = tag if pid is None else f"{tag}[{pid}]"
    return f"<{USER << 3 | severity}>{when} {who}: ".encode() + line.replace(b"\0", b" ").replace(b"\n", b" ")


class DatagramSocket:
    """Sends to a log daemon that may start, stop and restart. Belongs to one thread.

    Each message waits up to `timeout_s` for a log daemon that does not read.
    """

    def __init__(self, address: Path, timeout_s: float) -> None:
        self._address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout_s)

    def send(self, message: bytes) -> None:
        """Sends a message. Raises OSError, TimeoutError among them."""
        self._socket.sendto(message, self._address)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def describe_failure(error: OSError, address: Path) -> str:
    """Why a `send` failed, in words."""
    if isinstance(error, TimeoutError):
        return f"{address} does not read"
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return f"nobody listens at {address}"
    return f"{address}: {error.strerror or error}"


class SyslogHandler(logging.Handler):
    """Sends the daemon's own log records, with the tag `tag`; drops what the log daemon does not accept."""

    def __init__(self, tag: str, address: Path = ADDRESS, timeout_s: float = SEND_TIMEOUT_S) -> None:
        super().__init__()
        self._tag = identifier(tag)
        self._socket = DatagramSocket(address, timeout_s)
        self._not_before = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() < self._not_before:
            return
        severity = next((PRIORITIES[level] for level in sorted(PRIORITIES, reverse=True) if record.levelno >= level), 7)
        try:
            text = self.format(record).encode(errors="backslashreplace")
            self._socket.send(datagram(self._tag, text, record.created, severity, os.getpid()))
        except TimeoutError:
            self._not_before = time.monotonic() + PAUSE_S
        except OSError:
            return  # nobody listens; somebody may listen at the next record
        except Exception:  # noqa: BLE001 - a record that can't be formatted must not end the thread; as in logging's own handlers
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()
