"""Something that happens once, and that tasks wait for."""

import asyncio


class Once:
    """As asyncio.Event, without a way back. An Event is 900 bytes, and there are some for every program."""

    __slots__ = ("_has_happened", "_waiting")

    def __init__(self) -> None:
        self._has_happened = False
        self._waiting: tuple[asyncio.Future[None], ...] = ()

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._has_happened

    def set(self) -> None:
        """It happens; later calls do nothing."""
        self._has_happened, waiting, self._waiting = True, self._waiting, ()
        for each in waiting:
            if not each.done():
                each.set_result(None)

    async def wait(self) -> None:
        """Returns once it has happened."""
        if self._has_happened:
            return
        happened = asyncio.get_running_loop().create_future()
        self._waiting += (happened,)
        try:
            await happened
        finally:
            self._waiting = tuple(each for each in self._waiting if each is not happened)
