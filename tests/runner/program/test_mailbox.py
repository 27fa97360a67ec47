"""The mailbox of one program: which of an exit and what comes after it is handled first, and with which line."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest
import structlog

from supervisor.core.job import Job
from supervisor.core.program.events import (
    DeadlinePassed,
    Event,
    SelectionFailed,
    StepsDone,
    StopRequested,
    WorkerExited,
)
from supervisor.core.program.facts import Policy
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.service.loop_share import LoopShare
from supervisor.runner.program.mailbox import Mailbox
from tests.waiting import wait_until_async

FIRST, SECOND = WorkerExited(1, 1), WorkerExited(2, 1)


MANY, WORK_S = 20, 0.02  # as many starts take at once


async def longest_turn(until: Callable[[], bool]) -> float:
    """How long the event loop kept others waiting at most, in seconds."""
    longest, loop = 0.0, asyncio.get_running_loop()
    while not until():
        began_at = loop.time()
        await asyncio.sleep(0)
        longest = max(longest, loop.time() - began_at)
    return longest


def mailbox() -> tuple[Mailbox, list[Event]]:
    """A mailbox, and what has been handled."""
    handled = list[Event]()
    tasks = BackgroundTasks(structlog.get_logger())
    return Mailbox(
        Job(Policy("train", is_job=True)),
        lambda event, decide: handled.append(event),
        lambda before: None,
        tasks,
        LoopShare(),
    ), handled


async def test_all_that_comes_at_once_is_recorded_as_a_whole():
    """Also what an effect posts, and what is recorded once all is handled."""
    happened = list[str]()

    @contextlib.contextmanager
    def together() -> Iterator[None]:
        happened.append("begin")
        yield
        happened.append("end")

    def handle(event: Event, decide: object) -> None:
        happened.append(type(event).__name__)
        if event is FIRST:
            made.post(StopRequested())

    job, tasks = Job(Policy("train", is_job=True)), BackgroundTasks(structlog.get_logger())
    made = Mailbox(job, handle, lambda before: happened.append("settle"), tasks, LoopShare(), together)

    made.post(FIRST)

    assert happened == ["begin", "WorkerExited", "StopRequested", "settle", "end"]


def given(line: asyncio.Future[str | None]) -> Callable[[WorkerExited], Awaitable[WorkerExited]]:
    """Gives an exit the line, once that is known."""

    async def gather(exited: WorkerExited) -> WorkerExited:
        return replace(exited, error_line=await line)

    return gather


async def read(line: asyncio.Future[str | None], text: str) -> None:
    """The line is read, and whoever waits for it goes on."""
    line.set_result(text)
    for _ in range(3):
        await asyncio.sleep(0)


async def test_an_exit_waits_for_its_line():
    made, handled = mailbox()
    line: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    made.post_exit(FIRST, given(line))
    await asyncio.sleep(0)
    waited = list(handled)
    await read(line, "ValueError")

    assert (waited, handled) == ([], [replace(FIRST, error_line="ValueError")])


async def test_what_comes_while_an_exit_waits_is_handled_after_it():
    made, handled = mailbox()
    line: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    made.post_exit(FIRST, given(line))

    made.post(StopRequested())
    await asyncio.sleep(0)
    await read(line, "too late")

    assert handled == [FIRST, StopRequested()]


async def test_an_answer_for_the_dead_process_does_not_take_the_line_from_its_exit():
    """A job can die while the checkpoint that it is to begin from is selected."""
    made, handled = mailbox()
    line: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    answer = SelectionFailed(1, "no disk", permanent=False)
    made.post_exit(FIRST, given(line))

    made.post(answer)
    await asyncio.sleep(0)
    await read(line, "ModuleNotFoundError")

    assert handled == [replace(FIRST, error_line="ModuleNotFoundError"), answer]


async def test_such_an_answer_keeps_its_place_before_what_cuts_the_wait_short():
    made, handled = mailbox()
    line: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    answer = SelectionFailed(1, "no disk", permanent=False)
    made.post_exit(FIRST, given(line))

    made.post(answer)
    made.post(StopRequested())

    assert handled == [FIRST, answer, StopRequested()]


async def test_a_line_that_is_read_late_is_not_given_to_the_next_exit():
    made, handled = mailbox()
    lines = [asyncio.get_running_loop().create_future() for _ in range(2)]
    made.post_exit(FIRST, given(lines[0]))
    made.post(StopRequested())
    made.post_exit(SECOND, given(lines[1]))
    await asyncio.sleep(0)

    await read(lines[0], "of the first")
    await read(lines[1], "of the second")

    assert handled == [FIRST, StopRequested(), replace(SECOND, error_line="of the second")]


async def test_the_end_of_the_daemon_does_not_wait_for_a_line():
    made, handled = mailbox()
    line: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    made.post_exit(FIRST, given(line))
    await asyncio.sleep(0)

    made.close()
    await read(line, "too late")
    made.post(StopRequested())

    assert handled == [FIRST]


async def test_many_exits_at_once_leave_the_event_loop_its_turns():
    handled, share = list[Event](), LoopShare()
    line: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def handle(event: Event, decide: object) -> None:
        time.sleep(WORK_S)
        handled.append(event)

    for _ in range(MANY):
        job, tasks = Job(Policy("train", is_job=True)), BackgroundTasks(structlog.get_logger())
        Mailbox(job, handle, lambda before: None, tasks, share).post_exit(FIRST, given(line))
    line.set_result("killed")

    assert await longest_turn(lambda: len(handled) == MANY) < MANY * WORK_S / 2


async def test_many_deadlines_at_once_leave_the_event_loop_its_turns():
    handled, share, loop = list[Event](), LoopShare(), asyncio.get_running_loop()
    due_at = loop.time() + 0.1

    def handle(event: Event, decide: object) -> None:
        if isinstance(event, DeadlinePassed):
            time.sleep(WORK_S)
            handled.append(event)

    for _ in range(MANY):
        job = Job(Policy("train", is_job=True))
        made = Mailbox(job, handle, lambda before: None, BackgroundTasks(structlog.get_logger()), share)
        job.facts.deadline_at = due_at
        made.post(StopRequested())
        job.facts.deadline_at = None

    assert await longest_turn(lambda: len(handled) == MANY) < MANY * WORK_S / 2


@pytest.mark.hostile
async def test_a_worker_that_says_much_postpones_no_deadline_and_no_exit_of_others():
    handled, share, loop = list[Event](), LoopShare(), asyncio.get_running_loop()
    line: asyncio.Future[str | None] = loop.create_future()
    line.set_result("killed")

    def handle(event: Event, decide: object) -> None:
        if isinstance(event, StepsDone):
            time.sleep(WORK_S)
        elif not isinstance(event, StopRequested):
            handled.append(event)

    flooded, late, dead = (
        Mailbox(job, handle, lambda before: None, BackgroundTasks(structlog.get_logger()), share)
        for job in (Job(Policy("train", is_job=True)) for _ in range(3))
    )

    def flood() -> None:
        flooded.post(StepsDone(1, 1))
        flooding[0] = loop.call_soon(flood)

    flooding = [loop.call_soon(flood)]
    dead.post_exit(FIRST, given(line))
    late._job.facts.deadline_at = loop.time() + 0.05
    late.post(StopRequested())
    try:
        await wait_until_async(lambda: len({type(event) for event in handled}) == 2, timeout_s=3.0)
    finally:
        flooding[0].cancel()

    assert {type(event) for event in handled} == {DeadlinePassed, WorkerExited}
