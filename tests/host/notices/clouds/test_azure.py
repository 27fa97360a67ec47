"""Azure Scheduled Events, from the bytes to the sink, and against the server of these tests."""

import json
from datetime import UTC, datetime

import pytest

from supervisor.core.notices.notice import NO_NOTICES, Certainty, ClockReading, NoticeKind
from supervisor.host.notices.clouds.azure import AzureSource, ids_of_own_events, parse_events
from supervisor.host.notices.parsing import ParseError
from supervisor.host.notices.polling import PollTimes
from tests.host.notices.metadata_server import Fault, MetadataServer
from tests.host.notices.recorder import Recorder

pytestmark = pytest.mark.fast_clock

NOW = ClockReading(1000.0, datetime(2026, 11, 21, 0, 51, 40, tzinfo=UTC))
# after learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
EVENT: dict[str, object] = {
    "EventId": "11111111-2222-3333-4444-555555555555",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["trainer_0"],
    "EventStatus": "Scheduled",
    "NotBefore": "Sat, 21 Nov 2026 00:51:52 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
ID = str(EVENT["EventId"])


def document(*events: dict[str, object]) -> bytes:
    return json.dumps({"DocumentIncarnation": 2, "Events": events}).encode()


def azure(server: MetadataServer, may_acknowledge: bool = False) -> AzureSource:
    return AzureSource(
        server.base, may_acknowledge=may_acknowledge, times=PollTimes(20, 0.05, 0.02), first_timeout_s=20
    )


# --- what the bytes mean ---------------------------------------------------------------------------------------------


def test_empty_document_announces_nothing() -> None:
    assert parse_events(b'{"DocumentIncarnation": 1, "Events": []}', "trainer_0") == NO_NOTICES


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        ("Preempt", NoticeKind.PREEMPTION),
        ("Terminate", NoticeKind.PREEMPTION),
        ("Reboot", NoticeKind.MAINTENANCE),
        ("Redeploy", NoticeKind.MAINTENANCE),
    ],
)
def test_event_that_ends_the_machine_is_certain_and_can_be_called_off(type_: str, kind: NoticeKind) -> None:
    (announced,) = parse_events(document({**EVENT, "EventType": type_}), "trainer_0").notices

    assert (announced.kind, announced.certainty, announced.is_cancellable) == (kind, Certainty.CERTAIN, True)
    assert announced.deadline_at(NOW) == NOW.monotonic_at + 12


def test_event_that_has_started_leaves_no_time() -> None:
    started = {**EVENT, "EventType": "Reboot", "EventStatus": "Started", "NotBefore": ""}

    (announced,) = parse_events(document(started), "trainer_0").notices

    assert announced.deadline_at(NOW) == NOW.monotonic_at


def test_wrong_day_of_the_week_does_not_matter() -> None:
    (announced,) = parse_events(document({**EVENT, "NotBefore": "Mon, 21 Nov 2026 00:51:52 GMT"}), None).notices

    assert announced.deadline_at(NOW) == NOW.monotonic_at + 12


@pytest.mark.parametrize(("duration_s", "events"), [(0, 0), (8, 0), (9, 1), (-1, 1)])
def test_freeze_counts_from_nine_seconds_and_only_as_possible(duration_s: int, events: int) -> None:
    reading = parse_events(document({**EVENT, "EventType": "Freeze", "DurationInSeconds": duration_s}), "trainer_0")

    assert [notice.certainty for notice in reading.notices] == [Certainty.POSSIBLE] * events


@pytest.mark.parametrize(("status", "kind"), [("Scheduled", NoticeKind.MAINTENANCE), ("Started", NoticeKind.FREEZE)])
def test_freeze_is_maintenance_until_it_begins(status: str, kind: NoticeKind) -> None:
    event = {**EVENT, "EventType": "Freeze", "EventStatus": status, "DurationInSeconds": 30}

    assert [notice.kind for notice in parse_events(document(event), "trainer_0").notices] == [kind]


def test_events_of_other_machines_are_ignored() -> None:
    shared = {**EVENT, "EventId": "shared", "Resources": ["trainer_0", "trainer_1"]}
    theirs = {**EVENT, "EventId": "theirs", "Resources": ["trainer_1"]}
    body = document(EVENT, shared, theirs)

    assert [notice.id for notice in parse_events(body, "trainer_0").notices] == [ID, "shared"]
    assert len(parse_events(body, None).notices) == 3
    assert ids_of_own_events(body, "trainer_0") == {ID}
    assert ids_of_own_events(body, None) == set()


@pytest.mark.parametrize(
    "change",
    [
        {"EventType": "Explode"},
        {"EventStatus": "Completed"},
        {"NotBefore": "soon"},
        {"NotBefore": None},
        {"Resources": "trainer_0"},
        {"EventId": ""},
    ],
)
def test_event_that_is_not_understood_hides_no_other(change: dict[str, object]) -> None:
    reading = parse_events(document({**EVENT, "EventId": "odd", **change}, EVENT), "trainer_0")

    assert [notice.id for notice in reading.notices] == [ID]
    assert reading.problem


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"Events": {}}', b'{"Events": null}'])
def test_document_that_is_not_understood_is_an_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_events(body, "trainer_0")


# --- against the server ----------------------------------------------------------------------------------------------


async def test_event_that_disappears_is_withdrawn(server: MetadataServer, heard: Recorder) -> None:
    server.events = [EVENT]
    heard.watch(azure(server))
    notice = await heard.the_notice()

    server.events = []
    await heard.until(lambda: heard.withdrawn_ids)

    assert heard.withdrawn_ids == [notice.id] == [ID]


async def test_event_of_another_machine_is_never_reported(server: MetadataServer, heard: Recorder) -> None:
    server.events = [{**EVENT, "Resources": ["trainer_1"]}]

    heard.watch(azure(server))
    await heard.more_answers(10)

    assert heard.received_all == []


async def test_machine_without_a_known_name_reports_every_event_and_an_error(
    server: MetadataServer, heard: Recorder
) -> None:
    server.machine = None
    server.events = [{**EVENT, "Resources": ["trainer_1"]}]

    heard.watch(azure(server))
    await heard.the_notice()
    await heard.until(lambda: heard.error is not None)

    assert "name" in (heard.error or "")


@pytest.mark.parametrize("name", ["<html>Please log in</html>", '{"action":', "", "a b", "x" * 200])
async def test_invalid_name_is_an_error(name: str, server: MetadataServer, heard: Recorder) -> None:
    server.machine = name
    server.events = [EVENT]

    heard.watch(azure(server))

    assert (await heard.the_notice()).id == ID


async def test_first_answer_may_take_longer_than_later_ones(server: MetadataServer, heard: Recorder) -> None:
    await server.raise_fault(Fault.DRIP, "/metadata/scheduledevents")  # takes more than a second, and is no document
    heard.watch(AzureSource(server.base, times=PollTimes(0.3, 0.05, 0.02), first_timeout_s=60))

    def of_events() -> list[str]:
        return [error for error in heard.errors if "for scheduled events" in error]

    await heard.until(lambda: any("within 0.3 s" in event for event in of_events()))

    assert "not JSON" in of_events()[0]


async def test_acknowledged_event_of_this_machine_alone_is_started_once(
    server: MetadataServer, heard: Recorder
) -> None:
    source = azure(server, may_acknowledge=True)
    server.events = [EVENT]
    heard.watch(source)
    await heard.the_notice()
    await heard.more_answers()

    await source.acknowledge(ID)

    assert server.acknowledged == [ID]


@pytest.mark.parametrize(
    ("may_acknowledge", "resources", "id"),
    [(False, ["trainer_0"], ID), (True, ["trainer_0", "trainer_1"], ID), (True, ["trainer_0"], "another")],
    ids=["not allowed", "not ours alone", "not known"],
)
async def test_nothing_else_is_acknowledged(
    may_acknowledge: bool, resources: list[str], id: str, server: MetadataServer, heard: Recorder
) -> None:
    source = azure(server, may_acknowledge)
    server.events = [{**EVENT, "Resources": resources}]
    heard.watch(source)
    await heard.the_notice()
    await heard.more_answers()

    await source.acknowledge(id)

    assert not [request for request in server.requests if request.startswith("POST")]


async def test_acknowledgement_that_fails_once_is_tried_again(server: MetadataServer, heard: Recorder) -> None:
    source = azure(server, may_acknowledge=True)
    server.events = [EVENT]
    heard.watch(source)
    await heard.the_notice()
    await heard.more_answers()
    server.refuse_posts = 1

    await source.acknowledge(ID)

    assert server.acknowledged == [ID]
