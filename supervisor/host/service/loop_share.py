"""How long programs may keep the event loop before clients, deaths and notices have their turn.

When many programs end at once, or wait until the same moment, each is started again in a callback, and asyncio runs all
callbacks that are due before it looks at its descriptors. So a host with 200 programs would stand still for 200 starts.
What may wait a moment asks here first.
"""

import asyncio

SHARE_S = 0.02  # of one turn; a start takes 5 to 40 ms


class LoopShare:
    """What all programs together may take of each turn of the running event loop."""

    __slots__ = ("_share_s", "_used_s")

    def __init__(self, share_s: float = SHARE_S) -> None:
        self._share_s = share_s
        self._used_s = 0.0

    @property
    def is_used_up(self) -> bool:
        """Whether the rest has to wait for the next turn."""
        return self._used_s >= self._share_s

    def use(self, seconds: float) -> None:
        """So long was just taken."""
        if self._used_s == 0.0:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        self._used_s += max(seconds, 1e-9)

    async def wait_turn(self) -> None:
        """Returns in a turn of which something is left."""
        while self.is_used_up:  # noqa: ASYNC110 - not a change is waited for, but a turn
            await asyncio.sleep(0)

    def _begin_turn(self) -> None:
        self._used_s = 0.0
