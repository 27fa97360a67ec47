"""Who may do what: told from the kernel's word about the other end of the socket, never from what it says."""

import os
import socket
import struct
from dataclasses import dataclass

_UCRED = struct.Struct("3i")  # struct ucred of unix(7): pid, uid, gid


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a unix socket."""

    pid: int
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """The other end's credentials at the time it connected (SO_PEERCRED). Raises OSError."""
    return Peer(*_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def may_change(peer: Peer, socket_owner: int) -> bool:
    """Root, the daemon's own user and the socket's owner may change things; whoever else could connect may read."""
    return peer.uid in (0, os.geteuid(), socket_owner)
