"""What programs print, from the logs' thread to their event listeners."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable

import structlog

from supervisor.host.logs.handover import ProgramOutput

HELD_BYTES = 4 << 20  # while the daemon is busy otherwise; the log keeper holds a megabyte more
OVERHEAD_BYTES = 200  # of an event of one byte
AT_ONCE = 200  # events; between them the daemon does what else there is to do
TOLD_EVERY_S = 10.0  # how often the log says that events were missed, while they are

log = structlog.get_logger()


class Printing:
    """Made in the event loop's thread; `heard` and `missed` may be called in any. What comes before `begin` waits."""

    def __init__(self) -> None:
        self._deliver: Callable[[ProgramOutput], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: deque[ProgramOutput] = deque()
        self._held_bytes = 0
        self._missed = 0
        self._is_called = False
        self._telling: asyncio.TimerHandle | None = None
        self._told_at = self._loop.time() - TOLD_EVERY_S

    def begin(self, deliver: Callable[[ProgramOutput], None]) -> None:
        """From now on `deliver` gets each output, in the event loop's thread."""
        with self._lock:
            self._deliver = deliver
            self._call()

    def heard(self, output: ProgramOutput) -> None:
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
        if self._deliver is not None and not self._is_called and not self._loop.is_closed():
            self._is_called = True
            self._loop.call_soon_threadsafe(self._turn, self._deliver)

    def _turn(self, deliver: Callable[[ProgramOutput], None]) -> None:
        for _ in range(AT_ONCE):
            with self._lock:
                if not self._waiting:
                    break
                output = self._waiting.popleft()
                self._held_bytes -= len(output.data) + OVERHEAD_BYTES
            deliver(output)
        with self._lock:
            self._is_called = False
            if self._waiting:
                self._call()
            if self._missed and self._telling is None:
                self._telling = self._loop.call_at(self._told_at + TOLD_EVERY_S, self._tell_missed)

    def _tell_missed(self) -> None:
        """At once, then every few seconds while it goes on."""
        with self._lock:
            missed, self._missed, self._telling = self._missed, 0, None
        self._told_at = self._loop.time()
        log.error(
            "listener.output_missed",
            events=missed,
            remedy="programs with stdout_events_enabled print more than the daemon can pass on; their logs have it",
        )
