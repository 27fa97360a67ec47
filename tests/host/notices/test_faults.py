"""Every fault of a metadata server against every source: told, survived, nothing invented, nothing withdrawn."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from supervisor.host.notices.clouds.alibaba import AlibabaSource
from supervisor.host.notices.clouds.aws import AwsSource
from supervisor.host.notices.clouds.azure import AzureSource
from supervisor.host.notices.clouds.google import GoogleSource
from supervisor.host.notices.parsing import format_time
from supervisor.host.notices.polling import PollTimes
from supervisor.host.notices.source import NoticeSource
from tests.host.notices.metadata_server import Fault, MetadataServer
from tests.host.notices.recorder import Recorder

pytestmark = pytest.mark.fast_clock

TIMEOUT_S = 0.12
TIMES = PollTimes(TIMEOUT_S, retry_cap_s=0.05, every_s=0.02)


def _soon() -> str:
    return format_time(datetime.now(UTC) + timedelta(seconds=60))


async def _interrupt_aws(server: MetadataServer) -> None:
    server.spot = {"action": "terminate", "time": _soon()}


async def _release_alibaba(server: MetadataServer) -> None:
    server.released = _soon()


async def _preempt_google(server: MetadataServer) -> None:
    await server.set_google("preempted", "TRUE")


async def _preempt_azure(server: MetadataServer) -> None:
    server.events = [
        {
            "EventId": "11111111-2222-3333-4444-555555555555",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": ["trainer_0"],
            "EventStatus": "Scheduled",
            "NotBefore": (datetime.now(UTC) + timedelta(seconds=60)).strftime("%a, %d %b %Y %H:%M:%S GMT"),
            "DurationInSeconds": -1,
        }
    ]


@dataclass(frozen=True)
class Case:
    """A source, how it is pointed at the server, and how its cloud takes the machine away."""

    source: Callable[[str], NoticeSource]
    take_away: Callable[[MetadataServer], Awaitable[None]]


CASES = {
    "aws": Case(lambda base: AwsSource(base, TIMES), _interrupt_aws),
    "alibaba": Case(lambda base: AlibabaSource(base, TIMES), _release_alibaba),
    "google": Case(
        lambda base: GoogleSource(base, times=TIMES, wait_s=1),
        _preempt_google,
    ),
    "azure": Case(
        lambda base: AzureSource(base, times=TIMES, first_timeout_s=TIMEOUT_S),
        _preempt_azure,
    ),
}
NAMES = ["aws", *(pytest.param(name, marks=pytest.mark.thorough) for name in CASES if name != "aws")]


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("name", NAMES)
async def test_fault_is_reported_and_a_later_notice_is_received(
    name: str, fault: Fault, server: MetadataServer, heard: Recorder
) -> None:
    case = CASES[name]
    await case.take_away(server)
    await server.raise_fault(fault)

    heard.watch(case.source(server.base))
    await heard.until(lambda: heard.error is not None)
    told_meanwhile = list(heard.received_all)
    await server.cure()
    await heard.the_notice()
    await heard.until(lambda: heard.error is None)

    assert told_meanwhile == []
    assert all("cannot ask the" in error and ";" in error for error in heard.errors)
    assert server.redirected == []


@pytest.mark.parametrize("fault", [each for each in Fault if each is not Fault.NOT_FOUND])
@pytest.mark.parametrize("name", NAMES)
async def test_fault_withdraws_no_notice(name: str, fault: Fault, server: MetadataServer, heard: Recorder) -> None:
    case = CASES[name]
    await case.take_away(server)
    heard.watch(case.source(server.base))
    notice = await heard.the_notice()
    await heard.until(lambda: heard.error is None)

    await server.raise_fault(fault)
    await heard.until(lambda: heard.error is not None)
    await server.cure()
    await heard.until(lambda: heard.error is None)
    await heard.more_answers()

    assert heard.withdrawn_ids == []
    assert heard.received_all == [notice]
