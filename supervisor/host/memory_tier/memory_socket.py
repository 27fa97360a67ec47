"""Hands what a dead worker left in memory to the worker that begins from it, beside what writes it to the disk.

The socket is an abstract one: it has no file in a folder that the job's user could have replaced, and no length limit
that a long path breaks. Who connects gets the file, open for reading, if the kernel says that it is the job's user.
"""

import asyncio
import contextlib
import secrets
import socket

from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.host.peers import peer_of
from supervisor.protocol.memory_tier.layout import SOCKET_NAME


class MemorySocket:
    """Open until `close`. `name`: by which a worker finds it."""

    def __init__(self, held: HeldMemory) -> None:
        """`held` stays the caller's, and open for as long as this is. Raises OSError."""
        self._held = held
        self.name = SOCKET_NAME + secrets.token_hex(8)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(f"\0{self.name}")
            self._socket.listen()
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket, self._on_connection)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Nobody gets it any more."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _on_connection(self) -> None:
        with contextlib.suppress(OSError):  # it has left again; or there is no descriptor to spare, and it gives up
            connection, _ = self._socket.accept()
            with connection:
                connection.setblocking(False)
                if peer_of(connection).uid == self._held.owner:
                    socket.send_fds(connection, [b"memory"], [self._held.descriptor])
