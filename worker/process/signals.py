"""SIGTERM and SIGINT as a request to flush and leave.

A Python handler runs between bytecodes of the main thread, so after the step that is being computed. The first
SIGINT is polite, the second is Python's KeyboardInterrupt at once. A handler of the script's own is called after
ours; a signal that is ignored stays ignored (a shell does that to SIGINT of what it starts in the background).
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType

from worker.process.requests import PendingRequests, SaveRequest

Handler = Callable[[int, FrameType | None], object]
_HANDLED = (signal.SIGTERM, signal.SIGINT)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler, None)  # None: installed by C code; can't be called from here


class StopSignals:
    """While entered, both signals ask for a flush and a stop. Does nothing outside the main thread."""

    def __init__(self, requests: PendingRequests) -> None:
        self._requests = requests
        self._before: dict[signal.Signals, Handler | int | None] = {}

    def install(self) -> None:
        """Takes the signals over."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _HANDLED:
            before = signal.getsignal(number)
            if before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Gives them back."""
        for number, before in self._before.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requests.add_save_request(SaveRequest(stop=True))
        before = self._before.get(signal.Signals(number))
        if callable(before) and before not in _DEFAULTS:
            before(number, frame)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
