"""The watch of descendants outlives a look that fails, as on a host without a thread to spare."""

import asyncio
from types import SimpleNamespace
from typing import Any

from supervisor.runner.fleet.watches.descendants import DescendantWatch
from tests.waiting import wait_until_async


async def test_look_that_fails_is_not_the_last():
    looks = list[int]()

    def look() -> None:
        looks.append(1)
        if len(looks) == 1:
            raise RuntimeError("can't start new thread")

    current = SimpleNamespace(has_to_note_descendants=True, note_descendants=look)
    runners: Any = {"digits": SimpleNamespace(current=current)}
    watch = DescendantWatch(runners, every_s=0.001)
    watch.on_change()
    task = asyncio.create_task(watch.watch())

    await wait_until_async(lambda: len(looks) > 1, "it looks again")
    task.cancel()
