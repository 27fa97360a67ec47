"""Many requests at once: each client and command has its turn, and equal questions get one answer."""

import asyncio
from collections.abc import Callable

import pytest

from supervisor.control.http.turns import MAKING, SENDING, SharedAnswers, Turns
from supervisor.control.http.web import Response


async def order_of(turns: Turns, *requests: tuple[str, str, float]) -> list[list[tuple[str, str]]]:
    """Who goes on in each turn of the event loop, if all of these wait at once."""
    granted: list[tuple[str, str]] = []

    async def wait(client: str, command: str, share: float) -> None:
        await turns.take(client, command, share)
        granted.append((client, command))

    tasks = [asyncio.create_task(wait(*request)) for request in requests]
    by_turn: list[list[tuple[str, str]]] = []
    while len(granted) < len(requests):
        before = len(granted)
        await asyncio.sleep(0)
        if granted[before:]:
            by_turn.append(granted[before:])
    await asyncio.gather(*tasks)
    return by_turn


async def test_one_answer_is_made_in_a_turn_and_some_are_sent():
    made = await order_of(Turns(), *[("a", "status", MAKING)] * 3)
    sent = await order_of(Turns(), *[("a", "status", SENDING)] * 8)

    assert [len(turn) for turn in made] == [1, 1, 1]
    assert [len(turn) for turn in sent] == [5, 3]


async def test_who_asks_most_waits_for_its_own_and_with_no_other_command():
    flood = [("greedy", "status", MAKING)] * 20

    turns = await order_of(Turns(), *flood, ("greedy", "version", MAKING), ("other", "status", MAKING))

    assert [turn[0] for turn in turns[:4]] == [
        ("greedy", "status"),
        ("other", "status"),
        ("greedy", "version"),
        ("greedy", "status"),
    ]


async def test_the_turn_of_a_client_that_has_gone_is_the_next_one_s():
    turns = Turns()
    gone = asyncio.create_task(turns.take("a", "status"))
    await asyncio.sleep(0)
    gone.cancel()

    assert await order_of(turns, ("a", "status", MAKING)) == [[("a", "status")]]


def counting(made: list[int]) -> Callable[[], "asyncio.Future[Response]"]:
    async def make() -> Response:
        made.append(len(made))
        return Response(b"%d" % made[-1])

    return lambda: asyncio.ensure_future(make())


async def test_equal_questions_that_wait_get_one_answer_and_a_later_one_its_own():
    made: list[int] = []
    answers = SharedAnswers(Turns())

    first = await asyncio.gather(*(answers.get("a", "status", b"{}", counting(made)) for _ in range(300)))
    later = await answers.get("a", "status", b"{}", counting(made))

    assert {answer.body for answer in first} == {b"0"}
    assert later.body == b"1"


@pytest.mark.parametrize("asked", [("b", b"{}"), ("a", b'{"name": "x"}')], ids=["client", "question"])
async def test_another_client_or_question_has_an_answer_of_its_own(asked: tuple[str, bytes]):
    made: list[int] = []
    answers, (client, key) = SharedAnswers(Turns()), asked

    both = await asyncio.gather(
        answers.get("a", "status", b"{}", counting(made)), answers.get(client, "status", key, counting(made))
    )

    assert [answer.body for answer in both] == [b"0", b"1"]


async def test_the_first_that_leaves_takes_nothing_from_the_others():
    made: list[int] = []
    answers = SharedAnswers(Turns())
    first = asyncio.create_task(answers.get("a", "status", b"{}", counting(made)))
    second = asyncio.create_task(answers.get("a", "status", b"{}", counting(made)))
    await asyncio.sleep(0)

    first.cancel()

    assert (await second).body == b"0"
