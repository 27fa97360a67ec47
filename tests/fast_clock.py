"""An event loop whose clock runs faster while the loop waits, so that tests of time-outs take little time.

For tests in which both ends of whatever is waited for are in this loop: `pytestmark = pytest.mark.fast_clock`. While
the loop has something to do, its clock runs as any other, so nothing gets less time than it needs; likewise while a
thread works for it. It does not jump from timer to timer, since what one end has sent may reach the other one a moment
later. `time.monotonic` is not changed: a test that measures asks `loop.time()`.
"""

import asyncio
import selectors
import time
from asyncio import Future
from typing import Any

RATE = 100.0
"""Of the clock while nothing is to be done: 10 ms for what reaches the loop late in a second of its time."""


class _FastSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Waits a hundredth of the time-out."""

    def __init__(self) -> None:
        super().__init__()
        self.gained_s = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0 or self.threads:
            return super().select(timeout)
        began_at = time.monotonic()
        ready = super().select(timeout / RATE)
        waited_s = time.monotonic() - began_at
        passed_s = min(waited_s * RATE, timeout) if ready else timeout
        self.gained_s += max(0.0, passed_s - waited_s)
        return ready


class FastClockLoop(asyncio.SelectorEventLoop):
    """The event loop."""

    def __init__(self) -> None:
        self._fast = _FastSelector()
        super().__init__(self._fast)

    def time(self) -> float:
        """The clock of this loop, which is ahead of `time.monotonic()`."""
        return super().time() + self._fast.gained_s

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Future[Any]:
        """Has a thread call `func`; the clock is an ordinary one until that is done."""
        self._fast.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda _: self._thread_ended())
        return future

    def _thread_ended(self) -> None:
        self._fast.threads -= 1
