"""What people asked of a program: exports that are waited for, flushes by their ids, stops, with a start to follow."""

import asyncio
import secrets
from collections.abc import Callable

from supervisor.protocol.wire.messages import Committed, Export, Exported, FromWorker, SaveFailed
from supervisor.runner.records.observers import ProgramObserver

FLUSH_ANSWERS_KEPT = 64  # more than there are people who wait for a checkpoint of one job at the same moment


class WorkerRequests(ProgramObserver):
    """The requests to the workers of one program. Nothing here outlives the daemon: what they made is on the disk."""

    __slots__ = ("_exports", "flush_answers", "restarts", "stops")

    def __init__(self) -> None:
        self.flush_answers: dict[int, Committed | SaveFailed] = {}
        """What became of the last flush requests, by their ids."""
        self.restarts = False
        """Whether it was stopped by a client that has said it will start it again, and has not yet."""
        self.stops = 0
        """How many times clients have asked to stop it: a start that waits meanwhile is not carried out."""
        self._exports: dict[int, asyncio.Future[Exported]] = {}

    async def request_export(self, attempt: int, send: Callable[[Export], None], limit_s: float) -> Exported:
        """Asks the worker to export its model, and waits for the answer.

        If the worker ends first, or is silent for `limit_s`, that is the answer.
        """
        id = secrets.randbits(48)  # an earlier daemon may have asked the same worker
        answer: asyncio.Future[Exported] = asyncio.get_running_loop().create_future()
        self._exports[id] = answer
        send(Export(attempt, id))
        try:
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            text = f"cannot export: the worker has not answered for {limit_s:.0f} s; does the program handle `export`?"
            return Exported(attempt, id, 0, error=text)
        finally:
            self._exports.pop(id, None)

    def on_message(self, message: FromWorker, now: float) -> None:
        if isinstance(message, Exported):
            self._answer_export(message)
        elif isinstance(message, Committed | SaveFailed):
            for flush_id in message.flushes:
                self.flush_answers[flush_id] = message
            while len(self.flush_answers) > FLUSH_ANSWERS_KEPT:
                del self.flush_answers[min(self.flush_answers)]

    def on_worker_gone(self, attempt: int) -> None:
        """Answers the exports that are waited for: there will be none."""
        for id in list(self._exports):
            self._answer_export(Exported(attempt, id, 0, error="cannot export: the worker ended before it was done"))

    def _answer_export(self, message: Exported) -> None:
        answer = self._exports.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message)
