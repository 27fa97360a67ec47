"""Work that takes a while and that nobody waits for."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from structlog.typing import FilteringBoundLogger

Result = TypeVar("Result")


class BackgroundTasks:
    """Runs coroutines beside everything else. What they raise is an internal error, and goes to `log`."""

    __slots__ = ("_log", "_tasks")

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begins this work. The event loop alone would forget it: that has weak references only."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel_all(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("internal.failed", error=repr(error), exc_info=error)
