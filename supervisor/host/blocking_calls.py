"""Runs calls that may hang, on a disk or in a driver, in threads that nobody waits for.

asyncio and the interpreter wait for the threads of an executor when they end, so one dead file system would keep the
daemon from exiting. The threads here are daemon threads: the process ends without them.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

IDLE_S = 10.0  # how long a thread without work stays: a log that is followed is read several times a second

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


_late: dict[Hashable, threading.Thread] = {}
"""By key: the last call of `run_within` that did not come back in time."""


def run_within(limit_s: float, key: Hashable, work: Callable[[], Result]) -> Result:
    """Returns or raises what `work` does, run in a thread; blocks.

    Raises TimeoutError after `limit_s`, and at once while an earlier call of that `key` has not come back.
    """
    if is_late(key):
        raise TimeoutError
    result: Future[Result] = Future()
    thread = threading.Thread(target=_complete, args=(result, work), name="looking", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the host has no thread to spare
        return work()
    try:
        return result.result(limit_s)
    except TimeoutError:
        if not result.done():
            _late[key] = thread
        raise


def is_late(key: Hashable) -> bool:
    """Whether a call of `run_within` of that key did not come back in time, nor since."""
    late = _late.get(key)
    if late is not None and not late.is_alive():
        _late.pop(key, None)
        return False
    return late is not None


class ThreadsOfUsers:
    """Runs what takes as long as a user likes: `at_once` calls for each user, so that one keeps nobody else waiting.

    Only for calls that end by themselves: the end of the daemon waits for them. `name`: of the threads.
    """

    def __init__(self, at_once: int, name: str) -> None:
        self._at_once = at_once
        self._name = name
        self._pools: dict[str | None, ThreadPoolExecutor] = {}

    async def run(
        self,
        user: str | None,
        work: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Returns or raises what `work` does, run in a thread for that user; None: the daemon's own."""
        if user not in self._pools:
            self._pools[user] = ThreadPoolExecutor(self._at_once, self._name)
        return await asyncio.wrap_future(self._pools[user].submit(work, *args, **kwargs))

    def close(self) -> None:
        """Begins nothing more."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)


class BlockingCalls:
    """One thread for each folder that is worked in: calls for one folder run in order, and delay no other folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Path, queue.SimpleQueue[Callable[[], None]]] = {}

    async def run(
        self, path: Path | None, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Returns or raises what `work` does, run in the thread for the folder of the file `path`."""
        return await asyncio.wrap_future(self.submit(path, work, *args, **kwargs))

    async def run_for_folder(self, folder: Path, work: Callable[[], Result]) -> Result:
        """Returns or raises what `work` does, run in the thread for `folder`. Raises RuntimeError if none starts."""
        return await asyncio.wrap_future(self._submit(folder, work))

    def submit(
        self, path: Path | None, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> "Future[Result]":
        """As `run`, but returns at once, with the future result."""
        return self._submit(Path() if path is None else path.parent, lambda: work(*args, **kwargs))

    def _submit(self, folder: Path, work: Callable[[], Result]) -> "Future[Result]":
        result: Future[Result] = Future()
        with self._lock:
            if folder not in self._queues:
                threading.Thread(target=self._run_queue, args=(folder,), name="blocking", daemon=True).start()
                self._queues[folder] = queue.SimpleQueue()  # only now: the host may have no thread to spare
            self._queues[folder].put(lambda: _complete(result, work))
        return result

    def _run_queue(self, folder: Path) -> None:
        with self._lock:
            calls = self._queues[folder]
        while True:
            try:
                call = calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if calls.empty():
                        del self._queues[folder]
                        return
                continue
            call()


def _complete(result: "Future[Result]", work: Callable[[], Result]) -> None:
    if not result.set_running_or_notify_cancel():  # nobody waits any more
        return
    try:
        value = work()
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
        result.set_exception(error)
    else:
        result.set_result(value)
