"""Notices that somebody gives on purpose, to see that everything is durable in time."""

import asyncio
import itertools
from collections.abc import Callable

from supervisor.core.notices.notice import Certainty, Notice, NoticeKind

NAME = "drill"


class Drills:
    """The drills under way. `receive` and `withdraw` are told. A drill is over at its deadline, as the host stays."""

    def __init__(self, receive: Callable[[Notice, str | None], None], withdraw: Callable[[str, str], None]) -> None:
        self._receive = receive
        self._withdraw = withdraw
        self._numbers = itertools.count(1)
        self._ends: dict[str, tuple[str | None, asyncio.TimerHandle]] = {}

    def start(self, program: str | None, in_s: float, kind: NoticeKind, certainty: Certainty) -> Notice:
        """Says that the host goes in `in_s` seconds, to one program or (None) to all."""
        loop = asyncio.get_running_loop()
        id, deadline_at = str(next(self._numbers)), loop.time() + in_s
        whom = f" for {program}" if program else ""
        notice = Notice(NAME, id, kind, certainty, deadline_at, is_cancellable=True, text=f"somebody practises{whom}")
        self._ends[id] = (program, loop.call_at(deadline_at, self._end, id))
        self._receive(notice, program)
        return notice

    def withdraw(self, program: str | None) -> int:
        """Withdraws the drills of one program, or (None) all of them; gives how many there were."""
        ids = [id for id, (whose, _) in self._ends.items() if program is None or whose == program]
        for id in ids:
            self._end(id)
        return len(ids)

    def _end(self, id: str) -> None:
        _, timer = self._ends.pop(id)
        timer.cancel()
        self._withdraw(NAME, id)
