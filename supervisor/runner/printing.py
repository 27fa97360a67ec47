"""What programs print, from the logs' thread to their event listeners."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

import structlog

from supervisor.host.log_handover import Output

HELD_BYTES = 4 << 20  # while the daemon is busy otherwise; the log keeper holds a megabyte more
OVERHEAD_BYTES = 200  # of an event of one byte
AT_ONCE = 200  # events; between them the daemon does what else there is to do
TOLD_EVERY_S = 10.0  # how often the log says that events were missed, while they are

log = structlog.get_logger()


class Printing:
    """`deliver` gets each output in the event loop's thread, in which this is made; `heard` may be called in any."""

    def __init__(self, deliver: Callable[[Output], None]) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[Output] = deque()
        self._held_bytes = 0
        self._missed = 0
        self._is_called = False
        self._told_at = float("-inf")

    @property
    def waits(self) -> bool:
        """Whether something is still to be delivered."""
        with self._lock:
            return self._is_called

    def heard(self, output: Output) -> None:
        """Something was printed; what does not fit into memory is dropped, and said so."""
        size = len(output.data) + OVERHEAD_BYTES
        with self._lock:
            if self._held_bytes and self._held_bytes + size > HELD_BYTES:
                self._missed += 1
            else:
                self._waiting.append(output)
                self._held_bytes += size
            self._call()

    def missed(self, events: int) -> None:
        """The log keeper had to drop some."""
        with self._lock:
            self._missed += events
            self._call()

    def _call(self) -> None:
        if not self._is_called and not self._loop.is_closed():
            self._is_called = True
            self._loop.call_soon_threadsafe(self._turn)

    def _turn(self) -> None:
        for _ in range(AT_ONCE):
            with self._lock:
                if not self._waiting:
                    break
                output = self._waiting.popleft()
                self._held_bytes -= len(output.data) + OVERHEAD_BYTES
            self._deliver(output)
        self._tell_missed()
        with self._lock:
            self._is_called = False
            if self._waiting:
                self._call()

    def _tell_missed(self) -> None:
        now = self._loop.time()
        if self._missed and now - self._told_at >= TOLD_EVERY_S:
            with self._lock:
                missed, self._missed = self._missed, 0
            self._told_at = now
            log.error(
                "listener.output_missed",
                events=missed,
                remedy="programs with stdout_events_enabled print more than the daemon can pass on; their logs have it",
            )
