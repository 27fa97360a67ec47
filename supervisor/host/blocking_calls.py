"""Runs what may hang on a disk, or in a driver, in threads that nobody waits for: it must not keep the daemon here.

The event loop's own executor would be waited for at the end, by asyncio and again by the interpreter.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import ParamSpec, TypeVar

IDLE_S = 10.0  # how long a thread without work stays: a log that is followed is looked at several times a second

Given = ParamSpec("Given")
Result = TypeVar("Result")


class BlockingCalls:
    """A thread for each folder with something to do there, so that a disk that hangs holds up no other's files."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[Path, queue.SimpleQueue[Callable[[], None]]] = {}

    async def run(
        self, path: Path | None, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """What `work` gives or raises, done in the thread of the folder that `path` is in, after what came before."""
        return await asyncio.wrap_future(self.submit(path, work, *args, **kwargs))

    def submit(
        self, path: Path | None, work: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> "Future[Result]":
        """As `run`, but whoever wants to know waits for it."""
        done: Future[Result] = Future()

        def act() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = work(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                done.set_exception(error)
            else:
                done.set_result(result)

        folder = Path() if path is None else path.parent
        with self._lock:
            if folder not in self._waiting:
                threading.Thread(target=self._serve, args=(folder,), name="disk", daemon=True).start()
                self._waiting[folder] = queue.SimpleQueue()
            self._waiting[folder].put(act)
        return done

    def _serve(self, folder: Path) -> None:
        with self._lock:
            waiting = self._waiting[folder]
        while True:
            try:
                act = waiting.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if waiting.empty():
                        del self._waiting[folder]
                        return
                continue
            act()
