"""Asking for ever: how fast, what is told of failures, and what a single request is protected from."""

import asyncio
import contextlib

import pytest

from supervisor.host.notices.announcement import NO_NOTICES, NoticeReport
from supervisor.host.notices.metadata import MAX_BODY_BYTES, MetadataClient, MetadataError
from supervisor.host.notices.polling import EndpointErrors, EndpointPoller, PolledEndpoint
from tests.host.notices.metadata_server import Fault, MetadataServer
from tests.host.notices.recorder import Recorder


async def test_answer_longer_than_the_limit_is_not_taken(server: MetadataServer) -> None:
    await server.raise_fault(Fault.HUGE)

    with pytest.raises(MetadataError, match=f"longer than {MAX_BODY_BYTES}"):
        await MetadataClient(server.base).get("/", {})


async def test_answer_that_drips_is_given_up_at_the_limit(server: MetadataServer) -> None:
    await server.raise_fault(Fault.DRIP)

    with pytest.raises(MetadataError, match=r"no answer within 0\.2 s"):
        await MetadataClient(server.base, timeout_s=0.2).get("/", {})


def test_source_is_in_trouble_until_its_last_question_is_answered() -> None:
    recorder = Recorder()
    troubles = EndpointErrors("aws", recorder)

    troubles.record("scheduled", "no answer")
    troubles.record("spot", None)
    assert recorder.trouble == "no answer"

    troubles.record("scheduled", None)
    assert recorder.trouble is None


def test_of_several_troubles_the_same_one_is_told_until_it_is_over() -> None:
    recorder = Recorder()
    troubles = EndpointErrors("aws", recorder)

    for _ in range(3):
        troubles.record("scheduled", "no list")
        troubles.record("spot", "no action")
    assert set(recorder.errors) == {"no list"}

    troubles.record("scheduled", None)
    assert recorder.trouble == "no action"


async def test_failures_are_followed_by_longer_and_longer_pauses() -> None:
    loop, asked_at = asyncio.get_running_loop(), []

    async def ask() -> NoticeReport:
        asked_at.append(loop.time())
        raise MetadataError("no")

    recorder = Recorder()
    question = PolledEndpoint("spot", "spot", 0.01, ask)
    watch = asyncio.create_task(EndpointPoller("aws", "EC2", "wait", (question,)).run(recorder))
    await recorder.until(lambda: len(recorder.errors) >= 7)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch

    assert asked_at[6] - asked_at[0] >= 0.01 + 0.02 + 0.04 + 0.08 + 0.16 + 0.32


async def test_mistake_of_our_own_ends_no_watch() -> None:
    answers = iter([ZeroDivisionError("a mistake"), None])

    async def ask() -> NoticeReport:
        mistake = next(answers, None)
        if mistake is not None:
            raise mistake
        return NO_NOTICES

    recorder = Recorder()
    watch = asyncio.create_task(
        EndpointPoller("aws", "EC2", "wait", (PolledEndpoint("spot", "spot", 0.01, ask),)).run(recorder)
    )
    await recorder.until(lambda: recorder.answers)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch

    assert "a mistake" in recorder.errors[0]
