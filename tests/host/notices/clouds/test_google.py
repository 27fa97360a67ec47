"""Compute Engine and TPU VMs, from the bytes to the sink, and against the server of these tests."""

import json
from datetime import UTC, datetime

import pytest

from supervisor.core.notices.notice import NO_NOTICES, Certainty, ClockReading, NoticeKind
from supervisor.host.notices.clouds.google import (
    GoogleSource,
    parse_maintenance,
    parse_preempted,
    parse_upcoming,
)
from supervisor.host.notices.parsing import ParseError
from supervisor.host.notices.polling import PollTimes
from tests.host.notices.metadata_server import Fault, MetadataServer
from tests.host.notices.recorder import Recorder

pytestmark = pytest.mark.fast_clock

NOW = ClockReading(1000.0, datetime(2026, 12, 1, 18, 0, 1, tzinfo=UTC))
# after cloud.google.com/tpu/docs/view-maintenance-notifications, which spells it in both ways
UPCOMING = {
    "can_reschedule": "true",
    "latest_window_start_time": "2026-12-01T19:00:01Z",
    "maintenance_reasons": ["PLANNED_UPDATE"],
    "maintenance_status": "PENDING",
    "type": "SCHEDULED",
    "window_end_time": "2026-12-01T21:00:01Z",
    "window_start_time": "2026-12-01T19:00:01Z",
}
UPCOMING_AS_THE_API_SPELLS_IT = {
    "canReschedule": True,
    "latestWindowStartTime": "2026-12-01T19:00:01+00:00",
    "maintenanceStatus": "PENDING",
    "maintenanceType": "SCHEDULED",
    "windowEndTime": "2026-12-01T21:00:01+00:00",
    "windowStartTime": "2026-12-01T19:00:01+00:00",
}


def google(server: MetadataServer, poll_s: float = 0.02, wait_s: int = 20) -> GoogleSource:
    return GoogleSource(server.base, times=PollTimes(20.0, 0.05, poll_s), wait_s=wait_s)


# --- what the bytes mean ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warning_s", [30.0, 150.0])
def test_preempted_machine_has_what_its_setting_gives(warning_s: float) -> None:
    (announced,) = parse_preempted(b"TRUE\n", warning_s).notices

    assert announced.deadline_at(NOW) == NOW.monotonic_at + warning_s
    assert (announced.kind, announced.certainty, announced.is_cancellable) == (
        NoticeKind.PREEMPTION,
        Certainty.CERTAIN,
        False,
    )


@pytest.mark.parametrize(("has_gpu", "left_s"), [(True, 3600.0), (False, 60.0)])
def test_maintenance_that_stops_the_machine_is_certain(has_gpu: bool, left_s: float) -> None:
    (announced,) = parse_maintenance(b"TERMINATE_ON_HOST_MAINTENANCE", has_gpu).notices

    assert announced.certainty is Certainty.CERTAIN
    assert announced.deadline_at(NOW) == NOW.monotonic_at + left_s


def test_migration_is_a_possible_freeze() -> None:
    (announced,) = parse_maintenance(b"MIGRATE_ON_HOST_MAINTENANCE", False).notices

    assert (announced.certainty, announced.kind) == (Certainty.POSSIBLE, NoticeKind.FREEZE)
    assert announced.deadline_at(NOW) is None


@pytest.mark.parametrize("body", [b"true", b"", b"NONE", b"TRUE FALSE", b"<html>"])
def test_value_that_is_not_understood_is_an_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_preempted(body, 30.0)


@pytest.mark.parametrize(
    "said", [UPCOMING, UPCOMING_AS_THE_API_SPELLS_IT, {"Upcoming maintenance": UPCOMING}], ids=["own", "api", "wrapped"]
)
def test_upcoming_maintenance_is_read_in_every_spelling(said: dict[str, object]) -> None:
    (announced,) = parse_upcoming(json.dumps(said).encode()).notices

    assert announced.deadline_at(NOW) == NOW.monotonic_at + 3600
    assert announced.id == "upcoming-2026-12-01T19:00:01Z"


@pytest.mark.parametrize(
    "body",
    [
        b'{ "error": "no notifications have been received yet, try again later" }',
        b"{ }",
        b"NONE",
        b'"NONE"',
        json.dumps({**UPCOMING, "maintenance_status": "COMPLETE"}).encode(),
    ],
)
def test_every_form_of_nothing_upcoming_announces_nothing(body: bytes) -> None:
    assert parse_upcoming(body) == NO_NOTICES


@pytest.mark.parametrize(
    "body", [b"[]", b"7", b"{", b'{"maintenance_status": "PENDING"}', b'{"error": "something else"}', b'{"a": 1}']
)
def test_upcoming_maintenance_that_is_not_understood_is_an_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_upcoming(body)


# --- against the server ----------------------------------------------------------------------------------------------


async def test_preemption_ends_the_long_poll(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(google(server))
    await heard.more_answers(2)

    await server.set_google("preempted", "TRUE")

    assert (await heard.the_notice()).id == "preempted"


async def test_preemption_before_the_start_is_reported_at_once(server: MetadataServer, heard: Recorder) -> None:
    await server.set_google("preempted", "TRUE")

    heard.watch(google(server))

    assert (await heard.the_notice()).id == "preempted"


async def test_change_between_two_requests_is_seen(server: MetadataServer, heard: Recorder) -> None:
    """The maintenance comes and goes while nobody waits: what is there at the next request counts, and is told."""
    heard.watch(google(server, poll_s=0.3, wait_s=60))
    asked = len(server.requests) + 3
    await heard.until(lambda: len(server.requests) >= asked)  # first answers are in; the pause after them runs

    await server.set_google("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    notice = await heard.the_notice()
    await server.set_google("maintenance-event", "NONE")
    await heard.until(lambda: heard.withdrawn_ids)

    assert heard.withdrawn_ids == [notice.id]


async def test_unchanged_value_is_polled_with_one_waiting_request(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(google(server, wait_s=60))
    await heard.more_answers(30)  # of the question that does not wait

    assert server.requests.count("GET /computeMetadata/v1/instance/preempted 200") == 1


async def test_unchanged_values_are_reported_once(server: MetadataServer, heard: Recorder) -> None:
    server.waits = False  # the server answers at once, with the same ETag
    await server.set_google("preempted", "TRUE")

    heard.watch(google(server))
    notice = await heard.the_notice()
    await heard.more_answers(20)

    assert heard.received_all == [notice]


async def test_server_that_does_not_hold_requests_is_polled_with_pauses(
    server: MetadataServer, heard: Recorder
) -> None:
    server.waits = False

    heard.watch(google(server, poll_s=1.0))
    await heard.until(lambda: heard.answers >= 3)
    first = len(server.requests)
    await heard.until(lambda: heard.answers >= 6)

    assert len(server.requests) - first <= 6


async def test_response_without_the_flavor_is_an_error(server: MetadataServer, heard: Recorder) -> None:
    server.flavor = None
    await server.set_google("preempted", "TRUE")

    heard.watch(google(server))
    await heard.until(lambda: heard.errors)

    assert "Metadata-Flavor" in heard.errors[0]
    assert heard.received_all == []


async def test_machine_without_upcoming_maintenance_has_no_error(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(google(server))
    await heard.more_answers(10)

    assert heard.errors == []


async def test_rescheduled_maintenance_moves_its_deadline_and_keeps_its_id(
    server: MetadataServer, heard: Recorder
) -> None:
    server.upcoming = json.dumps({**UPCOMING, "window_start_time": "2099-12-01T19:00:01Z"})
    heard.watch(google(server))
    first = await heard.the_notice()

    server.upcoming = json.dumps({**UPCOMING, "window_start_time": "2001-12-01T19:00:01Z"})
    await heard.until(lambda: len(heard.received_all) == 2)

    second = heard.received_all[1]
    assert second.id == first.id
    assert second.deadline_at is not None
    assert first.deadline_at is not None
    assert second.deadline_at < first.deadline_at


async def test_unavailable_server_is_retried(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(google(server))
    await heard.more_answers(2)
    await server.raise_fault(Fault.UNAVAILABLE)
    await heard.until(lambda: heard.error is not None)

    await server.set_google("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE")
    await server.cure()

    assert (await heard.the_notice()).kind is NoticeKind.MAINTENANCE


def test_shortest_warning_follows_the_setting() -> None:
    assert GoogleSource().shortest_s == 30.0
    assert GoogleSource(preemption_notice_s=120).shortest_s == 150.0
