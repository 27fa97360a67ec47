"""The work of one program that takes a while and that nobody waits for."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from structlog.typing import FilteringBoundLogger


class BackgroundTasks:
    """Runs coroutines beside everything else. What they raise is an internal error, and goes to `log`."""

    __slots__ = ("_log", "_tasks")

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Begins this work."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def cancel_all(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("internal.failed", error=repr(error), exc_info=error)
