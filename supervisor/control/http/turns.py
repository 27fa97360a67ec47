"""Which of many requests is answered next, so that none keeps programs, notices and other clients waiting.

Some answers take some hundredths of a second on a host with many programs, and hundreds of clients may ask at once:

- In one turn of the event loop one answer is begun, and then none for some turns. In these, everything else goes on,
  also a new request, which would otherwise wait for an answer to others in each turn that it needs itself.
- Clients, which are users and addresses (`access.client_of`), have turns one after another, and so have the commands of
  each: who asks for the status on hundreds of connections waits for its own, and not with anything else.
"""

import asyncio
from collections import OrderedDict, deque

TURNS_BETWEEN = 4  # a request needs about eight until it is answered; an empty one takes 20 µs


class Turns:
    """Lets one request at a time go on, of each client and each of its commands in turn."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, OrderedDict[str, deque[asyncio.Future[None]]]] = OrderedDict()
        """By client and command; who is first has the next turn."""
        self._is_scheduled = False
        self._turns_until_next = 0

    async def take(self, client: str, command: str) -> None:
        """Returns in a turn of the running event loop in which this may go on, and nothing else that waits here."""
        granted = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, OrderedDict()).setdefault(command, deque()).append(granted)
        self._schedule()
        try:
            await granted
        except asyncio.CancelledError:
            self._discard(client, command, granted)
            raise

    def _schedule(self) -> None:
        if not self._is_scheduled and (self._waiting or self._turns_until_next):
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        if self._turns_until_next:
            self._turns_until_next -= 1
        elif self._grant_next():
            self._turns_until_next = TURNS_BETWEEN
        self._schedule()

    def _grant_next(self) -> bool:
        """Lets the first one go on; its client and command go behind all others. False: all have gone."""
        while self._waiting:
            client, commands = next(iter(self._waiting.items()))
            command, requests = next(iter(commands.items()))
            granted = requests[0]
            self._waiting.move_to_end(client)
            commands.move_to_end(command)
            self._discard(client, command, granted)
            if not granted.done():  # else its client has gone, in this turn
                granted.set_result(None)
                return True
        return False

    def _discard(self, client: str, command: str, request: asyncio.Future[None]) -> None:
        """Forgets a request; one that had its turn is not there any more."""
        commands = self._waiting.get(client, OrderedDict())
        requests = commands.get(command, deque())
        if request in requests:
            requests.remove(request)
        if not requests:
            commands.pop(command, None)
        if not commands:
            self._waiting.pop(client, None)
