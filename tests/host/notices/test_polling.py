"""Asking for ever: how fast, what is told of failures, and what a single request is protected from."""

import asyncio
import contextlib

import pytest

from supervisor.host.notices.announcement import NOTHING, Reading
from supervisor.host.notices.metadata import MAX_BODY_BYTES, Metadata, MetadataError
from supervisor.host.notices.polling import Poller, Question, Troubles
from tests.host.notices.metadata_server import Fault, MetadataServer
from tests.host.notices.recorder import Recorder


async def test_answer_longer_than_the_limit_is_not_taken(server: MetadataServer) -> None:
    await server.raise_fault(Fault.HUGE)

    with pytest.raises(MetadataError, match=f"longer than {MAX_BODY_BYTES}"):
        await Metadata(server.base).get("/", {})


async def test_answer_that_drips_is_given_up_at_the_limit(server: MetadataServer) -> None:
    await server.raise_fault(Fault.DRIP)

    with pytest.raises(MetadataError, match=r"no answer within 0\.2 s"):
        await Metadata(server.base, timeout_s=0.2).get("/", {})


def test_source_is_in_trouble_until_its_last_question_is_answered() -> None:
    recorder = Recorder()
    troubles = Troubles("aws", recorder)

    troubles.note("scheduled", "no answer")
    troubles.note("spot", None)
    assert recorder.trouble == "no answer"

    troubles.note("scheduled", None)
    assert recorder.trouble is None


def test_of_several_troubles_the_same_one_is_told_until_it_is_over() -> None:
    recorder = Recorder()
    troubles = Troubles("aws", recorder)

    for _ in range(3):
        troubles.note("scheduled", "no list")
        troubles.note("spot", "no action")
    assert set(recorder.errors) == {"no list"}

    troubles.note("scheduled", None)
    assert recorder.trouble == "no action"


async def test_failures_are_followed_by_longer_and_longer_pauses() -> None:
    loop, asked_at = asyncio.get_running_loop(), []

    async def ask() -> Reading:
        asked_at.append(loop.time())
        raise MetadataError("no")

    recorder = Recorder()
    question = Question("spot", "spot", 0.01, ask)
    watch = asyncio.create_task(Poller("aws", "EC2", "wait", (question,)).run(recorder))
    await recorder.until(lambda: len(recorder.errors) >= 7)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch

    assert asked_at[6] - asked_at[0] >= 0.01 + 0.02 + 0.04 + 0.08 + 0.16 + 0.32


async def test_mistake_of_our_own_ends_no_watch() -> None:
    answers = iter([ZeroDivisionError("a mistake"), None])

    async def ask() -> Reading:
        mistake = next(answers, None)
        if mistake is not None:
            raise mistake
        return NOTHING

    recorder = Recorder()
    watch = asyncio.create_task(Poller("aws", "EC2", "wait", (Question("spot", "spot", 0.01, ask),)).run(recorder))
    await recorder.until(lambda: recorder.answers)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch

    assert "a mistake" in recorder.errors[0]
