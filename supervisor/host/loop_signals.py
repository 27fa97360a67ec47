"""Signals for an event loop that must not lose one.

asyncio passes the number of a signal through the socket that also wakes the loop for its threads. A loop that is busy
while some hundreds of calls come from threads lets it fill up, and the next signal is dropped, with a line on standard
error. Here the interpreter's own mark for each signal carries it, which can't be full; a socket only wakes the loop.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable


class LoopSignals:
    """The signals that the running loop handles. For the main thread; `close` it before the loop ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._loop.add_reader(self._reading, self._drain)
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)

    def handle(self, number: int, callback: Callable[[], object]) -> None:
        """Has the loop call it whenever the signal has come, once for several that come at the same time."""
        signal.signal(number, lambda number, frame: self._loop.call_soon_threadsafe(callback))
        signal.siginterrupt(number, False)

    def close(self) -> None:
        """Wakes the loop no more. What a signal does from now on is up to the caller."""
        signal.set_wakeup_fd(-1)
        self._loop.remove_reader(self._reading)
        self._reading.close()
        self._writing.close()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._reading.recv(4096):
                pass
