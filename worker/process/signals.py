"""Signals that this process answers: SIGTERM and SIGINT stop it after a save, the daemon's signal dumps its stacks.

Imports nothing of this package at run time: tests load it by path, because importing `worker` opens the control pipes.
"""

import faulthandler
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from supervisor.protocol import layout

if TYPE_CHECKING:
    from worker.process.requests import PendingRequests

Handler = Callable[[int, FrameType | None], object]
_HANDLED = (signal.SIGTERM, signal.SIGINT)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler, None)  # None: installed by C code; can't be called from here

_stacks_file: int | None = None  # stays open: the handler writes to the descriptor where nothing can be opened any more


class StopSignals:
    """While installed, SIGTERM and SIGINT request a save and a stop. Does nothing outside the main thread.

    A Python handler runs between bytecodes of the main thread, so after the step that is being computed. Only the first
    SIGINT is a request; the second raises Python's KeyboardInterrupt at once. A handler of the script's own is called
    after ours; a signal that is ignored stays ignored (shells ignore SIGINT in what they start in the background).
    """

    def __init__(self, requests: "PendingRequests") -> None:
        self._requests = requests
        self._previous: dict[signal.Signals, Handler | int | None] = {}

    def install(self) -> None:
        """Installs the handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _HANDLED:
            previous = signal.getsignal(number)
            if previous is not signal.SIG_IGN:
                self._previous[number] = previous
                signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restores the handlers that were there before."""
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)
        self._previous.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requests.add_stop_request()
        previous = self._previous.get(signal.Signals(number))
        if callable(previous) and previous not in _DEFAULTS:
            previous(number, frame)
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def dump_stacks_on_signal(pipes: Path) -> None:
    """Writes the stacks of all threads into a file beside the pipes whenever the daemon sends its signal.

    faulthandler does it in C, at once, even inside a TensorFlow call. The file gets its name last, so that
    the daemon sends the signal only to a process that survives it. Raises OSError.
    """
    global _stacks_file
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    unnamed = pipes / f"{layout.STACKS}.new"
    _stacks_file = os.open(unnamed, flags, 0o600)
    faulthandler.register(layout.STACKS_SIGNAL, file=_stacks_file, all_threads=True, chain=False)
    unnamed.rename(pipes / layout.STACKS)
