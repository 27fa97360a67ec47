"""Turns: in order, but nobody waits long for one that does not come."""

import asyncio

import pytest

from supervisor.runner.fleet.ordering import STALL_LIMIT_S, StartTurn, StartTurns


async def test_turns_come_in_order_whoever_is_ready_first():
    turns, went = StartTurns(3), list[int]()
    ready = [asyncio.Event() for _ in range(3)]

    async def work(number: int) -> None:
        await ready[number].wait()
        await turn[number].wait_turn()
        went.append(number)

    turn = list(turns)
    works = asyncio.create_task(turns.run_all(work(number) for number in range(3)))
    for number in (2, 1, 0):
        ready[number].set()
        await asyncio.sleep(0)
    await works

    assert went == [0, 1, 2]


async def test_program_that_gives_up_its_turn_blocks_nobody():
    turns, went = StartTurns(2, stall_limit_s=60.0), list[str]()
    first, second = turns
    late = asyncio.Event()

    async def slow() -> None:
        first.give_up()
        await late.wait()
        await first.wait_turn()
        went.append("slow")

    async def quick() -> None:
        await second.wait_turn()
        went.append("quick")
        late.set()

    async with asyncio.timeout(30):
        await turns.run_all([slow(), quick()])

    assert went == ["quick", "slow"]


@pytest.mark.slow
async def test_many_that_hang_hold_the_others_up_once_and_not_for_ever():
    turns = StartTurns(50)
    *hang, last = turns
    caller = asyncio.create_task(turns.release_in_order())
    began_at = asyncio.get_running_loop().time()

    await last.wait_turn()

    assert asyncio.get_running_loop().time() - began_at < len(hang) * STALL_LIMIT_S / 4
    await hang[0].wait_turn()  # it may go when it can
    await caller


async def test_failing_work_blocks_no_turn_and_is_raised_at_the_end():
    turns, went = StartTurns(3), list[str]()
    first, second, third = turns
    late = asyncio.Event()

    async def fails() -> None:
        await first.wait_turn()
        asyncio.get_running_loop().call_soon(late.set)
        raise OSError("no")

    async def goes(turn: StartTurn, name: str) -> None:
        await late.wait()
        await turn.wait_turn()
        went.append(name)

    with pytest.raises(OSError, match="no"):
        async with asyncio.timeout(60):
            await turns.run_all([fails(), goes(second, "second"), goes(third, "third")])

    assert went == ["second", "third"]


async def test_work_in_progress_finishes_when_the_rest_is_cancelled():
    turns, went = StartTurns(2), asyncio.Event()
    _, second = turns

    async def behind() -> None:
        await second.wait_turn()
        went.set()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("no")

    work = asyncio.create_task(behind())
    with pytest.raises(OSError, match="no"):
        await turns.run_all([fails()])

    async with asyncio.timeout(60):
        await went.wait()
    await work


async def test_others_have_their_turn_between_those_of_many_that_are_ready_at_once():
    turns, went, heard = StartTurns(100), list[int](), list[int]()

    async def work(number: int, turn: StartTurn) -> None:
        await turn.wait_turn()
        went.append(number)

    async def client() -> None:
        while len(went) < 100:
            heard.append(len(went))
            await asyncio.sleep(0)

    await asyncio.gather(turns.run_all(work(*each) for each in enumerate(turns)), client())

    assert went == [*range(100)]
    assert len({*heard}) > 50
