"""Turns: in order, but nobody waits long for one that does not come."""

import asyncio

import pytest

from supervisor.runner.fleet import ordering
from supervisor.runner.fleet.ordering import PATIENCE_S, Turn, Turns


async def test_turns_come_in_order_whoever_is_ready_first():
    turns, went = Turns(3), list[int]()
    ready = [asyncio.Event() for _ in range(3)]

    async def work(number: int) -> None:
        await ready[number].wait()
        await turn[number].comes()
        went.append(number)

    turn = list(turns)
    works = asyncio.create_task(turns.during(work(number) for number in range(3)))
    for number in (2, 1, 0):
        ready[number].set()
        await asyncio.sleep(0)
    await works

    assert went == [0, 1, 2]


async def test_who_gives_up_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ordering, "PATIENCE_S", 60.0)
    turns, went = Turns(2), list[str]()
    first, second = turns
    late = asyncio.Event()

    async def slow() -> None:
        first.give_up()
        await late.wait()
        await first.comes()
        went.append("slow")

    async def quick() -> None:
        await second.comes()
        went.append("quick")
        late.set()

    async with asyncio.timeout(30):
        await turns.during([slow(), quick()])

    assert went == ["quick", "slow"]


async def test_many_that_hang_hold_the_others_up_once_and_not_for_ever():
    turns = Turns(50)
    *hang, last = turns
    caller = asyncio.create_task(turns.call())
    began_at = asyncio.get_running_loop().time()

    await last.comes()

    assert asyncio.get_running_loop().time() - began_at < len(hang) * PATIENCE_S / 4
    await hang[0].comes()  # it may go when it can
    await caller


async def test_one_that_fails_leaves_nobody_waiting_for_a_turn_and_is_told_once_all_are_done():
    turns, went = Turns(3), list[str]()
    first, second, third = turns
    late = asyncio.Event()

    async def fails() -> None:
        await first.comes()
        asyncio.get_running_loop().call_soon(late.set)
        raise OSError("no")

    async def goes(turn: Turn, name: str) -> None:
        await late.wait()
        await turn.comes()
        went.append(name)

    with pytest.raises(OSError, match="no"):
        async with asyncio.timeout(60):
            await turns.during([fails(), goes(second, "second"), goes(third, "third")])

    assert went == ["second", "third"]


async def test_who_still_works_when_the_works_are_given_up_gets_its_turn():
    turns, went = Turns(2), asyncio.Event()
    _, second = turns

    async def behind() -> None:
        await second.comes()
        went.set()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("no")

    work = asyncio.create_task(behind())
    with pytest.raises(OSError, match="no"):
        await turns.during([fails()])

    async with asyncio.timeout(60):
        await went.wait()
    await work


async def test_others_have_their_turn_between_those_of_many_that_are_ready_at_once():
    turns, went, heard = Turns(100), list[int](), list[int]()

    async def work(number: int, turn: Turn) -> None:
        await turn.comes()
        went.append(number)

    async def client() -> None:
        while len(went) < 100:
            heard.append(len(went))
            await asyncio.sleep(0)

    await asyncio.gather(turns.during(work(*each) for each in enumerate(turns)), client())

    assert went == [*range(100)]
    assert len({*heard}) > 50
