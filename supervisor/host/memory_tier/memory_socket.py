"""Hands what a dead worker left in memory to the worker that begins from it, beside what writes it to the disk.

The socket is an abstract one: it has no file in a folder that the job's user could have replaced, and no length limit
that a long path breaks. Who connects gets the file, open for reading, if the kernel says that it is the job's user.

Anybody on the host can connect, and attach descriptors to what nobody reads, as long as the kernel takes them; closing
one may take as long as its sender likes. So a thread closes the connections, and while many wait for that nobody is let
in: a worker that gets nothing here begins from the disk.
"""

import asyncio
import contextlib
import secrets
import socket

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.memory_tier.held_memory import HeldMemory
from supervisor.host.peers import peer_of, refuse_descriptors
from supervisor.protocol.memory_tier.layout import SOCKET_NAME

MOST_CLOSING = 16  # one job has one worker that asks, once


class MemorySocket:
    """Open until `close`. `name`: by which a worker finds it."""

    def __init__(self, held: HeldMemory) -> None:
        """`held` stays the caller's, and open for as long as this is. Raises OSError."""
        self._held = held
        self._closing = BlockingCalls()
        self._closing_count = 0
        self._is_closed = False
        self.name = SOCKET_NAME + secrets.token_hex(8)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(f"\0{self.name}")
            refuse_descriptors(self._socket)
            self._socket.listen()
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket, self._on_connection)
        except BaseException:
            self._socket.close()
            raise

    def close(self) -> None:
        """Nobody gets it any more."""
        if not self._is_closed:
            self._is_closed = True
            self._loop.remove_reader(self._socket)
            self._socket.shutdown(socket.SHUT_RDWR)
            self._close_in_thread(self._socket)

    def _on_connection(self) -> None:
        with contextlib.suppress(OSError):  # it has left again; or there is no descriptor to spare, and it gives up
            connection, _ = self._socket.accept()
            self._closing_count += 1
            if self._closing_count == MOST_CLOSING:
                self._loop.remove_reader(self._socket)
            try:
                connection.setblocking(False)
                if peer_of(connection).uid == self._held.owner:
                    socket.send_fds(connection, [b"memory"], [self._held.descriptor])
            finally:
                self._close_in_thread(connection)

    def _close_in_thread(self, sock: socket.socket) -> None:
        try:
            self._closing.submit(None, sock.close).add_done_callback(self._on_closed)
        except RuntimeError:  # the host has no thread to spare
            sock.close()
            self._go_on()

    def _on_closed(self, _: object) -> None:
        """In the thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._go_on)

    def _go_on(self) -> None:
        self._closing_count -= 1
        if not self._is_closed:
            self._loop.add_reader(self._socket, self._on_connection)
