"""In which order programs start and stop: by priority of the group, then of the program; lower numbers first and last.

What programs need before their start is read side by side; `StartTurns` has them start in order all the same.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from supervisor.config.load import start_order
from supervisor.host.ledger.writer import READ_WAIT_S
from supervisor.runner.program.runner import Runner

STALL_LIMIT_S = READ_WAIT_S + 1.0  # a slow disk keeps the order; one that hangs holds up its own jobs only

Done = TypeVar("Done")


def in_start_order(runners: Iterable[Runner]) -> list[Runner]:
    """In the order of start."""
    return sorted(runners, key=lambda runner: start_order(runner.config))


def in_stop_order(runners: Iterable[Runner]) -> list[Runner]:
    """In the order of stop."""
    return in_start_order(runners)[::-1]


@dataclass(slots=True)
class _Progress:
    """When one of those that wait for their turn became ready last, in the loop's time."""

    ready_at: float


class StartTurn:
    """One program's place in the order."""

    def __init__(self, progress: _Progress) -> None:
        self._progress = progress
        self._is_ready = asyncio.Event()
        self._may_go = asyncio.Event()

    async def wait_turn(self) -> None:
        """Returns when all before it have had their turn; at once if it gave its own up."""
        if not self._is_ready.is_set():
            self._progress.ready_at = asyncio.get_running_loop().time()
            self._is_ready.set()
            await self._may_go.wait()

    def give_up(self) -> None:
        """Nobody has to wait for it."""
        self._is_ready.set()

    async def wait_ready(self, timeout_s: float) -> None:
        """Until it is ready, or for that long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._is_ready.wait()

    @property
    def is_ready(self) -> bool:
        """Whether nothing of it is waited for."""
        return self._is_ready.is_set()

    def release(self) -> None:
        """It is its turn."""
        self._may_go.set()


class StartTurns:
    """The turns of `count` programs, in order.

    If no program has become ready for `stall_limit_s`, those that are ready no longer wait for the others.
    """

    def __init__(self, count: int, stall_limit_s: float = STALL_LIMIT_S) -> None:
        self._stall_limit_s = stall_limit_s
        self._progress = _Progress(asyncio.get_running_loop().time())
        self._turns = [StartTurn(self._progress) for _ in range(count)]

    def __iter__(self) -> Iterator[StartTurn]:
        return iter(self._turns)

    async def run_all(self, works: Iterable[Awaitable[Done]]) -> list[Done]:
        """Does all of it side by side, and calls the turns meanwhile; what each gave.

        Raises the first error there was once all are done: one that fails takes no other with it.
        """
        caller = asyncio.create_task(self.release_in_order())
        try:
            done = await asyncio.gather(*works, return_exceptions=True)
        finally:
            caller.cancel()
            for turn in self._turns:
                turn.release()  # whatever still works waits for nobody
        results = list[Done]()
        for result in done:
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    async def release_in_order(self) -> None:
        """Calls each when it is ready; to be run beside what waits for its turn."""
        loop = asyncio.get_running_loop()
        for turn in self._turns:
            while not turn.is_ready and (left_s := self._progress.ready_at + self._stall_limit_s - loop.time()) > 0:
                await turn.wait_ready(left_s)
            turn.release()
            await asyncio.sleep(0)  # a thousand starts take seconds: clients, deaths, notices come between
