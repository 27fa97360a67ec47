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

SEND_TIMEOUT_S = 5.0  # a journal that hangs may delay the logging thread, for which the daemon waits at its end

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""journald maps the file, and accepts it only if nobody can change it any more."""

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
"""A valid field name; names that begin with _ belong to the journal."""


def is_at(descriptor: int, journal_stream: str) -> bool:
    """Whether `descriptor` is the connection to the journal that `journal_stream` ($JOURNAL_STREAM) names.

    It may have been redirected since; then the log belongs where it leads now.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return journal_stream == f"{status.st_dev}:{status.st_ino}"


def entry(fields: Iterable[tuple[str, str]]) -> bytes:
    """One entry in the journal's format. Raises ValueError for an invalid field name."""
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
    """A connection to the journal at `address`."""

    def __init__(self, address: Path = SOCKET) -> None:
        self._address = str(address)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(SEND_TIMEOUT_S)

    def send(self, fields: Mapping[str, str]) -> None:
        """Sends one entry of any size. Raises OSError if the journal does not accept it, ValueError as `entry` does."""
        content = entry(fields.items())
        try:
            self._socket.sendto(content, self._address)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_file(content)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _send_file(self, content: bytes) -> None:
        """Sends what is too big for a datagram as the descriptor of a file in memory."""
        descriptor = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))
            self._socket.sendmsg([], [rights], 0, self._address)
        finally:
            os.close(descriptor)
