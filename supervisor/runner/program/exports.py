"""Exports that a worker was asked for: who waits, and what became of them."""

import asyncio
import secrets
from collections.abc import Callable

from supervisor.protocol.messages import Export, Exported


class ExportRequests:
    """Of one program. Nothing here lasts: what a daemon does not hear of any more is on the disk all the same."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Exported]] = {}

    async def request(self, attempt: int, say: Callable[[Export], None], patience_s: float) -> Exported:
        """Asks the worker and waits for its answer; its end, and silence for `patience_s`, are answers too."""
        id = secrets.randbits(48)  # an earlier daemon may have asked the same worker
        answer = self._waiting[id] = asyncio.get_running_loop().create_future()
        say(Export(attempt, id))
        try:
            return await asyncio.wait_for(answer, patience_s)
        except TimeoutError:
            text = f"cannot export: no answer for {patience_s:.0f} s; does the program know `export`?"
            return Exported(attempt, id, 0, error=text)
        finally:
            self._waiting.pop(id, None)

    def on_exported(self, message: Exported) -> None:
        """The worker answers."""
        answer = self._waiting.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def on_worker_gone(self, attempt: int) -> None:
        """The worker is gone."""
        for id in list(self._waiting):
            self.on_exported(Exported(attempt, id, 0, error="cannot export: the worker ended before it had"))
