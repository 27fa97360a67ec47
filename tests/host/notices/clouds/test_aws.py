"""Amazon EC2, from the bytes to the sink, and against the server of these tests."""

import json
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from urllib.parse import urlsplit

import pytest

from supervisor.core.notices.notice import NO_NOTICES, Certainty, ClockReading, NoticeKind
from supervisor.host.notices.clouds import alibaba, azure, google
from supervisor.host.notices.clouds import aws as aws_source
from supervisor.host.notices.clouds.aws import (
    SCHEDULED,
    AwsSource,
    parse_autoscaling,
    parse_rebalance,
    parse_scheduled,
    parse_spot,
)
from supervisor.host.notices.parsing import ParseError, format_time
from supervisor.host.notices.polling import PollTimes
from tests.host.notices.metadata_server import Fault, MetadataServer
from tests.host.notices.recorder import Recorder

pytestmark = pytest.mark.fast_clock

NOW = ClockReading(1000.0, datetime(2026, 11, 21, 0, 50, 0, tzinfo=UTC))
# after docs.aws.amazon.com/AWSEC2/latest/UserGuide: spot-instance-termination-notices, rebalance-recommendations,
# monitoring-instances-status-check_sched
RETIREMENT = {
    "NotBefore": "21 Jan 2027 09:00:43 GMT",
    "NotAfter": "21 Jan 2027 09:17:23 GMT",
    "Code": "instance-retirement",
    "Description": "The instance is running on degraded hardware",
    "EventId": "instance-event-0123456789abcdef0",
    "State": "active",
}


def aws(server: MetadataServer) -> AwsSource:
    return AwsSource(server.base, PollTimes(20.0, 0.05, 0.02))


def in_seconds(seconds: float) -> str:
    return format_time(datetime.now(UTC) + timedelta(seconds=seconds))


# --- what the bytes mean ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("action", "left_s"), [("terminate", 112.0), ("stop", 112.0), ("hibernate", 0.0)])
def test_interruption_is_certain_and_ends_at_its_time(action: str, left_s: float) -> None:
    (announced,) = parse_spot(f'{{"action": "{action}", "time": "2026-11-21T00:51:52Z"}}'.encode()).notices

    notice = announced.to_notice("aws", NOW)
    assert (notice.kind, notice.certainty, notice.is_cancellable) == (NoticeKind.PREEMPTION, Certainty.CERTAIN, False)
    assert notice.deadline_at == NOW.monotonic_at + left_s


@pytest.mark.parametrize(
    "body",
    [
        b'{"action": "reboot", "time": "2026-11-21T00:51:52Z"}',
        b'{"action": "terminate", "time": "21 Nov 2026 00:51:52"}',
        b'{"action": "terminate", "time": 1795222312}',
        b'{"action": "terminate", "time": "2026-13-41T00:51:52Z"}',
        b'{"time": "2026-11-21T00:51:52Z"}',
        b'["terminate"]',
        b"terminate",
        b"",
    ],
)
def test_interruption_that_is_not_understood_is_an_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_spot(body)


def test_rebalance_is_only_possible_and_says_no_time() -> None:
    (announced,) = parse_rebalance(b'{"noticeTime": "2026-11-21T00:40:00Z"}').notices

    assert (announced.kind, announced.certainty) == (NoticeKind.REBALANCE, Certainty.POSSIBLE)
    assert announced.deadline_at(NOW) is None


@pytest.mark.parametrize("state", [b"InService", b"Standby", b"Detached", b"Pending\n", b"Warmed:Stopped"])
def test_other_lifecycle_states_announce_nothing(state: bytes) -> None:
    assert parse_autoscaling(state) == NO_NOTICES


def test_terminated_by_the_group_is_certain() -> None:
    (announced,) = parse_autoscaling(b"Terminated").notices

    assert announced.certainty is Certainty.CERTAIN


@pytest.mark.parametrize("state", ["canceled", "completed"])
def test_events_that_are_over_announce_nothing(state: str) -> None:
    assert parse_scheduled(_list({**RETIREMENT, "State": state})) == NO_NOTICES


def test_event_that_is_not_understood_hides_no_other() -> None:
    reading = parse_scheduled(_list({**RETIREMENT, "State": "perhaps"}, RETIREMENT))

    assert [notice.id for notice in reading.notices] == ["instance-event-0123456789abcdef0"]
    assert "perhaps" in reading.problem


def _list(*events: dict[str, str]) -> bytes:
    return json.dumps(events).encode()


# --- against the server ----------------------------------------------------------------------------------------------


async def test_interruption_from_before_the_start_is_reported_once(server: MetadataServer, heard: Recorder) -> None:
    server.spot = {"action": "terminate", "time": in_seconds(90)}

    heard.watch(aws(server))
    notice = await heard.the_notice()
    await heard.more_answers(12)

    assert heard.received_all == [notice]
    assert notice.id == f"spot-terminate-{server.spot['time']}"


async def test_event_whose_time_moves_at_every_poll_is_one_notice(server: MetadataServer, heard: Recorder) -> None:
    server.spot = {"action": "terminate", "time": in_seconds(60)}
    heard.watch(aws(server))
    notice = await heard.the_notice()

    for later_s in (70, 80, 90):
        server.spot = {"action": "terminate", "time": in_seconds(later_s)}
        await heard.more_answers(8)

    assert heard.received_all == [notice]


async def test_interruption_that_comes_nearer_moves_its_deadline(server: MetadataServer, heard: Recorder) -> None:
    server.spot = {"action": "terminate", "time": in_seconds(110)}
    heard.watch(aws(server))
    first = await heard.the_notice()

    server.spot = {"action": "terminate", "time": in_seconds(20)}
    await heard.until(lambda: len(heard.received_all) == 2)

    second = heard.received_all[1]
    assert second.id == first.id
    assert first.deadline_at is not None
    assert second.deadline_at is not None
    assert second.deadline_at < first.deadline_at - 60


async def test_interruption_is_not_withdrawn_when_it_is_no_longer_mentioned(
    server: MetadataServer, heard: Recorder
) -> None:
    server.spot = {"action": "stop", "time": in_seconds(60)}
    heard.watch(aws(server))
    await heard.the_notice()

    server.spot = None
    await heard.more_answers(12)

    assert heard.withdrawn_ids == []


async def test_recommendation_and_cancelled_event_are_withdrawn(server: MetadataServer, heard: Recorder) -> None:
    server.rebalance, server.scheduled = "2026-11-21T00:40:00Z", [RETIREMENT]
    heard.watch(aws(server))
    await heard.until(lambda: len(heard.active) == 2)

    server.rebalance, server.scheduled = None, [{**RETIREMENT, "State": "canceled"}]
    await heard.until(lambda: not heard.active)

    assert sorted(heard.withdrawn_ids) == ["instance-event-0123456789abcdef0", "rebalance-2026-11-21T00:40:00Z"]


async def test_termination_by_the_auto_scaling_group_is_reported(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(aws(server))
    await heard.more_answers(4)

    server.lifecycle = "Terminated"

    assert (await heard.the_notice()).id == "autoscaling-terminated"


async def test_missing_list_of_events_is_an_error_and_hides_no_interruption(
    server: MetadataServer, heard: Recorder
) -> None:
    await server.raise_fault(Fault.NOT_FOUND, SCHEDULED)
    heard.watch(aws(server))
    await heard.until(lambda: heard.error is not None)

    server.spot = {"action": "terminate", "time": in_seconds(60)}
    await heard.the_notice()
    await heard.until(lambda: heard.error is not None)

    assert "scheduled events" in (heard.error or "")


async def test_refused_token_is_replaced_exactly_once(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(aws(server))
    await heard.more_answers(8)
    made = server.tokens_made

    server.expire_tokens()
    server.spot = {"action": "terminate", "time": in_seconds(60)}
    await heard.the_notice()
    await heard.more_answers(12)

    assert (made, server.tokens_made) == (1, 2)
    assert heard.errors == []


async def test_token_is_renewed_before_it_ends(server: MetadataServer, heard: Recorder) -> None:
    server.token_ttl_s = 1

    heard.watch(aws(server))
    await heard.until(lambda: server.tokens_made >= 3)

    assert heard.errors == []
    assert not [request for request in server.requests if request.endswith(" 401")]


async def test_no_request_is_sent_without_a_token(server: MetadataServer, heard: Recorder) -> None:
    await server.raise_fault(Fault.FORBIDDEN, "/latest/api/token")

    heard.watch(aws(server))
    await heard.until(lambda: len(heard.errors) >= 8)

    assert {request.split()[0] for request in server.requests} == {"PUT"}
    assert "no token" in heard.errors[0]


@pytest.mark.parametrize("token", [b"", b"two words", b"a\r\nX-Injected:1", b"a\tb", b"\xff\xfe", b"x" * 5000])
async def test_token_that_can_be_no_header_is_not_sent(token: bytes, server: MetadataServer, heard: Recorder) -> None:
    server.token_body = token

    heard.watch(aws(server))
    await heard.until(lambda: heard.errors)

    assert "no token" in heard.errors[0]
    assert {request.split()[0] for request in server.requests} == {"PUT"}


async def test_token_is_in_no_error(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(aws(server))
    await heard.more_answers(4)

    for fault in (Fault.NOT_HTTP, Fault.UNAUTHORIZED, Fault.HTML):
        await server.raise_fault(fault, "/latest/meta-data")
        known = len(heard.errors)
        await heard.until(lambda known=known: len(heard.errors) > known + 4)

    assert not [error for error in heard.errors if "TOKEN-" in error]


async def test_refused_token_is_not_renewed_faster_than_the_endpoints_are_polled(
    server: MetadataServer, heard: Recorder
) -> None:
    await server.raise_fault(Fault.UNAUTHORIZED, "/latest/meta-data")

    heard.watch(aws(server))
    await heard.until(lambda: len(heard.errors) >= 20)

    questions = [request for request in server.requests if request.startswith("GET")]
    assert server.tokens_made <= len(questions)
    assert len(questions) <= 2 * (len(heard.errors) + 4)  # each is asked again once, by the four that ask


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
async def test_proxy_from_the_environment_is_never_asked(
    variable: str, server: MetadataServer, heard: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = MetadataServer()
    await proxy.start()
    monkeypatch.setenv(variable, proxy.base)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server.spot = {"action": "terminate", "time": in_seconds(60)}

    heard.watch(aws(server))
    await heard.the_notice()

    assert proxy.requests == []
    await proxy.stop()


def test_only_addresses_of_the_link_itself_are_built_in() -> None:
    hosts = {urlsplit(each.BASE).hostname for each in (aws_source, google, azure, alibaba)}

    assert hosts == {"169.254.169.254", "100.100.100.200"}
    assert all(ip_address(host).is_link_local or not ip_address(host).is_global for host in hosts if host)
