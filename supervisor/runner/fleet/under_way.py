"""Which programs an order is changing just now: no other order may change them too, and nobody has to wait for that.

An `update` saves and stops what it changes, which takes as long as a flush and a stop. Other orders about other
programs are carried out meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from supervisor.config import ProgramConfig


class ChangesUnderWay:
    """The programs by name. `coming`: the configurations that they are being given, without those that are removed."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self.coming: dict[str, ProgramConfig] = {}
        self._ended = asyncio.Event()
        self._ended.set()

    def __contains__(self, name: str) -> bool:
        return name in self._since

    @contextmanager
    def change(self, programs: Mapping[str, ProgramConfig | None]) -> Iterator[Callable[[Iterable[str]], None]]:
        """While an order changes these, of which no other one changes any. None: it is removed.

        Gives what lets go of some before the end, which stay as they are.
        """
        held = {*programs}

        def let_go(names: Iterable[str]) -> None:
            for name in held.intersection(names):  # another order may have the others by now
                held.discard(name)
                del self._since[name]
                self.coming.pop(name, None)
            self._ended.set()

        self._since |= dict.fromkeys(programs, time.monotonic())
        self.coming |= {name: config for name, config in programs.items() if config is not None}
        self._ended.clear()
        try:
            yield let_go
        finally:
            let_go(programs)

    async def until_free(self) -> None:
        """Returns once nothing is being changed."""
        while self._since:
            self._ended.clear()
            await self._ended.wait()

    def refusal(self, name: str) -> str:
        """Why another order does not change one of them, and what to do."""
        for_s = time.monotonic() - self._since[name]
        return (
            f"another order (update, add or remove) has been changing {name} for {for_s:.0f} s, and its answer says "
            f"what came of that; what runs saves and stops first. Run update again then"
        )
