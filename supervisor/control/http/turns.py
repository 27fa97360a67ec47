"""Which of many requests is answered next, so that none keeps programs, notices and other clients waiting.

Some answers take some hundredths of a second on a host with many programs, and hundreds of clients may ask at once:

- In one turn of the event loop one answer is made, or a few that are made are sent. Then the loop does what else there
  is to do.
- Clients, which are users and addresses (`access.client_of`), have turns one after another, and so have the commands of
  each: who asks for the status on hundreds of connections waits for its own, and not with anything else.
- Of one client's requests that only read, those that say the same and still wait get one answer. It is as new as that
  which each would get alone, as it is made after all of them have come.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable

from supervisor.control.http.web import Response

MAKING = 1.0  # of a turn
SENDING = 0.2  # of a turn: about a fifth of a millisecond, and as much to read the next request


class Turns:
    """Lets as much go on in each turn of the running event loop as fits in, of each client and command in its turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, OrderedDict[str, deque[tuple[asyncio.Future[None], float]]]] = OrderedDict()
        self._is_scheduled = False

    async def take(self, client: str, command: str, share: float = MAKING) -> None:
        """Returns in a turn that has room for it. `share`: of that turn."""
        granted = asyncio.get_running_loop().create_future()
        commands = self._waiting.setdefault(client, OrderedDict())
        commands.setdefault(command, deque()).append((granted, share))
        self._schedule()
        await granted

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled, left = False, 1.0
        while self._waiting and left > 0:
            granted, share = self._next()
            if not granted.done():  # its client is still there
                granted.set_result(None)
                left -= share
        self._schedule()

    def _next(self) -> tuple[asyncio.Future[None], float]:
        """The next one, whose client and command go behind all others."""
        client, commands = self._waiting.popitem(last=False)
        command, requests = commands.popitem(last=False)
        request = requests.popleft()
        if requests:
            commands[command] = requests
        if commands:
            self._waiting[client] = commands
        return request


class SharedAnswers:
    """One answer for all equal requests that wait for the same turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: dict[tuple[str, Hashable], asyncio.Task[Response]] = {}

    async def get(self, client: str, command: str, key: Hashable, make: Callable[[], Awaitable[Response]]) -> Response:
        """What `make` gives, called in a turn after this call, by the first of those with this `key`."""
        task = self._waiting.get((client, key))
        if task is None:
            task = asyncio.create_task(self._make(client, command, key, make))
            self._waiting[client, key] = task
        answer = await asyncio.shield(task)  # it goes on for the others if this one is gone
        await self._turns.take(client, command, SENDING)
        return answer

    async def _make(
        self, client: str, command: str, key: Hashable, make: Callable[[], Awaitable[Response]]
    ) -> Response:
        try:
            await self._turns.take(client, command)
        finally:
            del self._waiting[client, key]
        return await make()
