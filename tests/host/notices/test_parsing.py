"""Whatever bytes come from outside, a reader gives announcements or says that it does not understand."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.core.notices.notice import ClockReading, NoticeReport
from supervisor.host.notices.clouds.alibaba import parse_termination
from supervisor.host.notices.clouds.aws import (
    parse_autoscaling,
    parse_rebalance,
    parse_scheduled,
    parse_spot,
)
from supervisor.host.notices.clouds.azure import ids_of_own_events, parse_events
from supervisor.host.notices.clouds.google import parse_maintenance, parse_preempted, parse_upcoming
from supervisor.host.notices.files.format import parse_notice_file
from supervisor.host.notices.parsing import ParseError, parse_http_date, parse_json, parse_rfc3339
from tests.fuzzing import cases

NOW = ClockReading(1000.0, datetime(2026, 11, 21, tzinfo=UTC))
READERS: dict[str, Callable[[bytes], NoticeReport]] = {
    "spot": parse_spot,
    "rebalance": parse_rebalance,
    "scheduled": parse_scheduled,
    "autoscaling": parse_autoscaling,
    "preempted": lambda body: parse_preempted(body, 30.0),
    "maintenance": lambda body: parse_maintenance(body, True),
    "upcoming": parse_upcoming,
    "events": lambda body: parse_events(body, "trainer_0"),
    "alibaba": parse_termination,
    "file": lambda body: NoticeReport((parse_notice_file("a.json", body, 0.0, NOW),)),
    "empty file": lambda body: NoticeReport((parse_notice_file("a", body, 0.0, NOW),)),
}
WORDS = st.sampled_from(
    [
        "action",
        "time",
        "terminate",
        "hibernate",
        "noticeTime",
        "NotBefore",
        "Code",
        "EventId",
        "State",
        "active",
        "Events",
        "EventType",
        "Preempt",
        "Freeze",
        "EventStatus",
        "Scheduled",
        "Started",
        "Resources",
        "trainer_0",
        "maintenance_status",
        "PENDING",
        "window_start_time",
        "type",
        "error",
        "version",
        "kind",
        "drill",
        "deadline",
        "in_s",
        "certainty",
        "certain",
        "reason",
        "DurationInSeconds",
        "2026-11-21T00:51:52Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "TRUE",
        "NONE",
        "21 Jan 2027 09:00:43 GMT",
        "31 Feb 2027 09:00:43 GMT",
        "",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=8),
    max_leaves=20,
)
BODIES = st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()) | st.text().map(str.encode)


@pytest.mark.parametrize("reader", list(READERS))
@pytest.mark.fuzz
@cases(150)
@given(body=BODIES)
def test_any_bytes_are_parsed_or_refused(reader: str, body: bytes) -> None:
    try:
        reading = READERS[reader](body)
    except ParseError as error:
        assert len(str(error)) < 500
        return
    for announced in reading.notices:
        deadline_at = announced.deadline_at(NOW)
        assert deadline_at is None or deadline_at >= NOW.monotonic_at
        assert announced.id
        assert announced.text.isprintable()
        assert len(announced.text) < 400


@pytest.mark.fuzz
@cases(150)
@given(
    event=st.fixed_dictionaries(
        {},
        optional={
            "EventId": st.sampled_from(["id", 7, None, [], "\n"]),
            "EventType": st.sampled_from(["Preempt", "Freeze", "Reboot", "Other", {}]),
            "EventStatus": st.sampled_from(["Scheduled", "Started", 1]),
            "Resources": st.sampled_from([["trainer_0"], ["other"], [7], "trainer_0", None]),
            "NotBefore": st.sampled_from(["", "Sat, 21 Nov 2026 00:51:52 GMT", "soon", 7]),
            "DurationInSeconds": st.sampled_from([-1, 5, 10, "5", None, 1e300, True, 10**400]),
        },
    )
)
def test_any_event_of_azure_is_parsed_or_refused(event: dict[str, object]) -> None:
    body = json.dumps({"Events": [event]}).encode()

    reading = parse_events(body, "trainer_0")

    assert len(reading.notices) + bool(reading.problem) <= 1
    ids_of_own_events(body, "trainer_0")


@given(st.datetimes(timezones=st.just(UTC)).map(lambda each: each.replace(microsecond=0)))
def test_times_come_back_as_they_were_written(moment: datetime) -> None:
    assert parse_rfc3339(moment.isoformat().replace("+00:00", "Z")) == moment
    month = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")[moment.month - 1]
    assert parse_http_date(f"Sun, {moment.day:02} {month} {moment.year:04} {moment:%H:%M:%S} GMT") == moment


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"1" * 10_000, b"NaN", b"Infinity", b"\xff"])
def test_malicious_json_is_refused(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_json(body)
