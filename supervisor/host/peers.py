"""Who is at the other end of a unix socket, as the kernel says (SO_PEERCRED of unix(7)), and what it may attach."""

import contextlib
import os
import socket
import struct
from dataclasses import dataclass

SO_PASSRIGHTS = 83  # <asm-generic/socket.h>
_UCRED = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """A process, and its effective user and group when it connected."""

    pid: int
    uid: int
    gid: int

    @property
    def is_trusted(self) -> bool:
        """Whether it runs as root, or as the user of this process."""
        return self.uid in (0, os.geteuid())


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected. Raises OSError."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def refuse_descriptors(listener: socket.socket) -> None:
    """Has the kernel refuse descriptors that clients attach to what they send, where it can (Linux 6.16).

    Nobody here wants one, and closing it may take as long as the client likes (a connection with SO_LINGER).
    """
    with contextlib.suppress(OSError):
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
