"""Sends log entries with fields to systemd's journal, by its native protocol: one datagram an entry.

The protocol is https://systemd.io/JOURNAL_NATIVE_PROTOCOL/. The journal itself adds the unit, the pid and the time.
"""

import array
import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path

SOCKET = Path("/run/systemd/journal/socket")

SEND_TIMEOUT_S = (
    5.0  # a journal that hangs may delay the log's thread, but not for ever: the daemon waits for it to leave
)

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""journald maps the file, and takes it only if nobody can change it any more."""

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""What the journal takes as a field's name; those with _ in front are its own."""


def is_at(descriptor: int, journal_stream: str) -> bool:
    """Whether `descriptor` still is the connection to the journal that `journal_stream` ($JOURNAL_STREAM) names.

    Somebody may have redirected it since, and then wants the log there.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return journal_stream == f"{status.st_dev}:{status.st_ino}"


def entry(fields: Iterable[tuple[str, str]]) -> bytes:
    """One entry as the journal reads it. Raises ValueError for a name that it would not take."""
    return b"".join(_field(name, value.encode(errors="backslashreplace")) for name, value in fields)


def _field(name: str, value: bytes) -> bytes:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"cannot name a journal field {name!r}: it must be A to Z, 0 to 9 and _, letter first, up to 64"
        )
    if b"\n" in value:
        return name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
    return name.encode() + b"=" + value + b"\n"


class JournalSocket:
    """The way to the journal at `address`."""

    def __init__(self, address: Path = SOCKET) -> None:
        self._address = str(address)
        self._way = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._way.settimeout(SEND_TIMEOUT_S)

    def send(self, fields: Mapping[str, str]) -> None:
        """Hands over one entry of any size. Raises OSError if the journal does not take it, ValueError as `entry`."""
        content = entry(fields.items())
        try:
            self._way.sendto(content, self._address)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_file(content)

    def close(self) -> None:
        """Gives the socket back."""
        self._way.close()

    def _send_file(self, content: bytes) -> None:
        """What is too big for a datagram goes as the descriptor of a file in memory."""
        descriptor = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            self._way.sendmsg([], [rights], 0, self._address)
        finally:
            os.close(descriptor)
