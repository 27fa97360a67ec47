"""Waiting until something is true of a program: it is looked at after every change."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


class ChangeWaiters:
    """Those who wait for a change of one program. `wake` is to be called after each, in the event loop's thread."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    async def wait_until(self, look: Callable[[], Answer | None]) -> Answer:
        """Waits until `look` gives something; it is called after every change."""
        while (answer := look()) is None:
            change = asyncio.get_running_loop().create_future()
            self._waiters.append(change)
            try:
                await change
            finally:
                self._waiters.remove(change)
        return answer

    def wake(self) -> None:
        """Something changed: everybody looks again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
