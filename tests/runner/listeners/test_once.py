"""Once: who waits goes on when it happens, and whoever comes later waits for nothing."""

import asyncio

import pytest

from supervisor.runner.listeners.once import Once

PATIENCE_S = 60.0


async def test_all_who_wait_go_on_and_who_comes_later_does_not_wait():
    once = Once()
    waiting = [asyncio.create_task(once.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    before = [once.is_set(), *(each.done() for each in waiting)]

    once.set()
    once.set()
    await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)
    await asyncio.wait_for(once.wait(), PATIENCE_S)

    assert (before, once.is_set()) == ([False] * 4, True)


async def test_who_gives_up_waiting_takes_no_other_along():
    once = Once()
    first, second = (asyncio.create_task(once.wait()) for _ in range(2))
    await asyncio.sleep(0)

    first.cancel()
    once.set()  # in the same turn: the first has not left yet

    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.wait_for(second, PATIENCE_S)
