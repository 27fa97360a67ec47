"""Many requests at once: each client and each command has its turn."""

import asyncio
from itertools import pairwise

from supervisor.control.http.turns import TURNS_BETWEEN, Turns
from tests.waiting import turn_loop


async def turns_of(turns: Turns, *requests: tuple[str, str]) -> list[tuple[int, str, str]]:
    """In which turn of the event loop each goes on, if all of these wait at once."""
    granted, now = list[tuple[int, str, str]](), 0

    async def wait(client: str, command: str) -> None:
        await turns.take(client, command)
        granted.append((now, client, command))

    async with asyncio.TaskGroup() as group:
        for request in requests:
            group.create_task(wait(*request))
        while len(granted) < len(requests):
            await asyncio.sleep(0)
            now += 1
    return granted


async def test_between_two_answers_the_event_loop_has_turns_for_everything_else():
    granted = await turns_of(Turns(), ("a", "status"), ("a", "status"), ("b", "status"), ("b", "version"))

    turns = [turn for turn, _, _ in granted]
    assert {after - before for before, after in pairwise(turns)} == {1 + TURNS_BETWEEN}


async def test_who_asks_most_waits_for_its_own_and_with_no_other_command():
    flood = [("greedy", "status")] * 20

    granted = await turns_of(Turns(), *flood, ("greedy", "version"), ("other", "status"))

    assert [request for _, *request in granted[:4]] == [
        ["greedy", "status"],
        ["other", "status"],
        ["greedy", "version"],
        ["greedy", "status"],
    ]


async def test_a_client_that_leaves_takes_no_turn_and_no_memory():
    """Also one whose turn has just come, and one that leaves in the same turn of the loop."""
    turns = Turns()
    gone = [asyncio.create_task(turns.take("gone", command)) for command in ("status", "status", "version")]
    await asyncio.sleep(0)
    for task in gone[1:]:
        task.cancel()
    await turn_loop(1)
    gone[0].cancel()

    assert [request for _, *request in await turns_of(turns, ("a", "status"))] == [["a", "status"]]
    assert not turns._waiting
    assert all(task.done() for task in gone)


async def test_whoever_leaves_while_others_are_busy_is_forgotten_at_once():
    turns = Turns()
    async with asyncio.TaskGroup() as busy:
        for _ in range(40):
            busy.create_task(turns.take("a", "status"))
        for number in range(40):
            gone = asyncio.create_task(turns.take("hostile", f"command {number}"))
            await asyncio.sleep(0)
            gone.cancel()
            await turn_loop(2)
            assert "hostile" not in turns._waiting
