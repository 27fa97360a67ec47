"""Drills: notices that somebody gives on purpose, to see whether everything is on the disk in time."""

import asyncio
import itertools
from collections.abc import Callable

from supervisor.core.notices.notice import Certainty, Notice, NoticeKind

SOURCE = "drill"


class Drills:
    """The drills under way, each passed to `add` and `withdraw`. A drill ends at its deadline, as the host stays."""

    def __init__(self, add: Callable[[Notice, str | None], None], withdraw: Callable[[str, str], None]) -> None:
        self._add = add
        self._withdraw = withdraw
        self._numbers = itertools.count(1)
        self._ends: dict[str, tuple[str | None, asyncio.TimerHandle]] = {}

    def start(self, program: str | None, in_s: float, kind: NoticeKind, certainty: Certainty) -> Notice:
        """Tells one program, or (None) all, that the host goes away in `in_s` seconds."""
        loop = asyncio.get_running_loop()
        id, deadline_at = str(next(self._numbers)), loop.time() + in_s
        text = f"a drill for {program}" if program else "a drill"
        notice = Notice(SOURCE, id, kind, certainty, deadline_at, is_cancellable=True, text=text)
        self._ends[id] = (program, loop.call_at(deadline_at, self._end, id))
        self._add(notice, program)
        return notice

    def withdraw(self, program: str | None) -> int:
        """Withdraws the drills of one program, or (None) all of them; returns how many there were."""
        ids = [id for id, (whose, _) in self._ends.items() if program is None or whose == program]
        for id in ids:
            self._end(id)
        return len(ids)

    def _end(self, id: str) -> None:
        _, timer = self._ends.pop(id)
        timer.cancel()
        self._withdraw(SOURCE, id)
