"""Passes what programs print from the log capture's thread to their event listeners."""

import asyncio
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable

import structlog

from supervisor.host.logs.output_events import ProgramOutput
from supervisor.host.logs.shared_room import SharedRoom

HELD_BYTES = 4 << 20  # while the daemon is busy otherwise; the logger holds a megabyte more
OVERHEAD_BYTES = 200  # of an event of one byte
BATCH = 200  # events; between them the daemon does what else there is to do
LOG_EVERY_S = 10.0  # how often the log says that events were missed, while they are
NAMED = 10  # programs in such a record, those that missed most

log = structlog.get_logger()


class OutputPublisher:
    """Made in the event loop's thread; `on_output` and `on_missed` may be called in any. What comes early waits.

    Programs share the room for what waits.
    """

    def __init__(self) -> None:
        self._deliver: Callable[[ProgramOutput], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._waiting: OrderedDict[int, ProgramOutput] = OrderedDict()
        self._room = SharedRoom(HELD_BYTES)
        self._count = 0
        self._missed: Counter[str] = Counter()
        self._is_scheduled = False
        self._log_timer: asyncio.TimerHandle | None = None
        self._logged_at = self._loop.time() - LOG_EVERY_S

    def start(self, deliver: Callable[[ProgramOutput], None]) -> None:
        """From now on `deliver` gets each output, in the event loop's thread."""
        with self._lock:
            self._deliver = deliver
            self._schedule()

    def on_output(self, output: ProgramOutput) -> None:
        """Something was printed; what does not fit into memory is dropped, and said so."""
        with self._lock:
            self._count += 1
            self._waiting[self._count] = output
            for program, number in self._room.add(output.program, self._count, len(output.data) + OVERHEAD_BYTES):
                del self._waiting[number]
                self._missed[program] += 1
            self._schedule()

    def on_missed(self, events: int, program: str) -> None:
        """The logger had to drop some of a program."""
        with self._lock:
            self._missed[program] += events
            self._schedule()

    def _schedule(self) -> None:
        if self._deliver is not None and not self._is_scheduled and not self._loop.is_closed():
            self._is_scheduled = True
            self._loop.call_soon_threadsafe(self._deliver_some, self._deliver)

    def _deliver_some(self, deliver: Callable[[ProgramOutput], None]) -> None:
        for _ in range(BATCH):
            with self._lock:
                if not self._waiting:
                    break
                number, output = self._waiting.popitem(last=False)
                self._room.remove(output.program, number)
            deliver(output)
        with self._lock:
            self._is_scheduled = False
            if self._waiting:
                self._schedule()
            if self._missed and self._log_timer is None:
                self._log_timer = self._loop.call_at(self._logged_at + LOG_EVERY_S, self._log_missed)

    def _log_missed(self) -> None:
        """At once, then every few seconds while it goes on."""
        with self._lock:
            missed, self._missed, self._log_timer = self._missed, Counter(), None
        self._logged_at = self._loop.time()
        log.error(
            "listener.output_missed",
            events=missed.total(),
            programs=dict(missed.most_common(NAMED)),
            remedy="programs with stdout_events_enabled print more than the daemon can pass on; see their logs",
        )
