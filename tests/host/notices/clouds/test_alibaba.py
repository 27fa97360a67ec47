"""Alibaba Cloud ECS, from the bytes to the sink."""

from datetime import UTC, datetime, timedelta

import pytest

from supervisor.core.notices.notice import Certainty, ClockReading, NoticeKind
from supervisor.host.notices.clouds.alibaba import AlibabaSource, parse_termination
from supervisor.host.notices.parsing import ParseError, format_time
from supervisor.host.notices.polling import PollTimes
from tests.host.notices.metadata_server import MetadataServer
from tests.host.notices.recorder import Recorder

pytestmark = pytest.mark.fast_clock

NOW = ClockReading(1000.0, datetime(2015, 1, 5, 18, 0, 0, tzinfo=UTC))


def test_release_is_certain_and_in_universal_time() -> None:
    (announced,) = parse_termination(b"2015-01-05T18:02:00Z\n").notices

    assert (announced.kind, announced.certainty) == (NoticeKind.PREEMPTION, Certainty.CERTAIN)
    assert announced.deadline_at(NOW) == NOW.monotonic_at + 120


@pytest.mark.parametrize("body", [b"2015-01-05 18:02:00", b"", b"soon", b"2015-01-05T18:02:00"])
def test_time_without_a_zone_is_an_error(body: bytes) -> None:
    with pytest.raises(ParseError):
        parse_termination(body)


async def test_release_is_reported_with_a_token(server: MetadataServer, heard: Recorder) -> None:
    heard.watch(AlibabaSource(server.base, PollTimes(20.0, every_s=0.02)))
    await heard.more_answers()

    server.released = format_time(datetime.now(UTC) + timedelta(seconds=200))
    notice = await heard.the_notice()

    assert notice.id == f"spot-{server.released}"
    assert heard.errors == []
    assert server.tokens_made == 1
