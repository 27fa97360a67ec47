"""Polling: how fast, what is reported of failures, and what a single request is protected from."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.notice import NO_NOTICES, NoticeReport
from supervisor.host.notices.metadata import MAX_BODY_BYTES, MetadataClient, MetadataError
from supervisor.host.notices.polling import EndpointErrors, PolledEndpoint, PolledSource, retry_s
from tests.host.notices.metadata_server import Fault, MetadataServer
from tests.host.notices.recorder import Recorder

pytestmark = pytest.mark.fast_clock


async def test_response_longer_than_the_limit_is_an_error(server: MetadataServer) -> None:
    await server.raise_fault(Fault.HUGE)

    with pytest.raises(MetadataError, match=f"longer than {MAX_BODY_BYTES}"):
        await MetadataClient(server.base).get("/", {})


async def test_response_that_drips_is_given_up_at_the_time_limit(server: MetadataServer) -> None:
    await server.raise_fault(Fault.DRIP)

    with pytest.raises(MetadataError, match=r"no answer within 0\.2 s"):
        await MetadataClient(server.base, timeout_s=0.2).get("/", {})


def test_source_works_again_once_its_last_failing_endpoint_answers() -> None:
    recorder = Recorder()
    errors = EndpointErrors("aws", recorder)

    errors.record("scheduled", "no answer")
    errors.record("spot", None)
    assert recorder.error == "no answer"

    errors.record("scheduled", None)
    assert recorder.error is None


def test_of_several_errors_the_first_one_is_reported_until_it_is_over() -> None:
    recorder = Recorder()
    errors = EndpointErrors("aws", recorder)

    for _ in range(3):
        errors.record("scheduled", "no list")
        errors.record("spot", "no action")
    assert set(recorder.errors) == {"no list"}

    errors.record("scheduled", None)
    assert recorder.error == "no action"


async def test_failures_are_followed_by_longer_and_longer_pauses() -> None:
    loop, asked_at = asyncio.get_running_loop(), []

    async def fetch() -> NoticeReport:
        asked_at.append(loop.time())
        raise MetadataError("no")

    recorder = Recorder()
    endpoint = PolledEndpoint("spot", "spot", 0.01, fetch)
    watch = asyncio.create_task(PolledSource("aws", "EC2", "wait", (endpoint,)).watch(recorder))
    await recorder.until(lambda: len(recorder.errors) >= 7)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch

    assert asked_at[6] - asked_at[0] >= 0.01 + 0.02 + 0.04 + 0.08 + 0.16 + 0.32


async def test_internal_error_does_not_end_the_watch() -> None:
    answers = iter([ZeroDivisionError("a mistake"), None])

    async def fetch() -> NoticeReport:
        mistake = next(answers, None)
        if mistake is not None:
            raise mistake
        return NO_NOTICES

    recorder = Recorder()
    watch = asyncio.create_task(
        PolledSource("aws", "EC2", "wait", (PolledEndpoint("spot", "spot", 0.01, fetch),)).watch(recorder)
    )
    await recorder.until(lambda: recorder.answers)
    watch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watch

    assert "a mistake" in recorder.errors[0]


@given(st.floats(0.01, 100), st.integers(0, 10_000))
def test_retry_is_never_faster_than_the_pace_and_never_much_slower_than_its_cap(every_s: float, failures: int) -> None:
    assert every_s <= retry_s(every_s, failures, 10.0) <= max(10.0, every_s) * 1.25
