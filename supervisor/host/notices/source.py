"""The protocols of a notice source and of the sink that it reports to."""

import time
from datetime import UTC, datetime
from typing import Protocol

from supervisor.core.notices.notice import ClockReading, NoticeReport


class NoticeSink(Protocol):
    """Receives what sources see; called from the event loop's thread. Neither method raises."""

    def on_report(self, source: str, endpoint: str, report: NoticeReport, now: ClockReading) -> None:
        """Everything that one endpoint of a source says at `now`; repeating it does no harm."""

    def on_source_health(self, source: str, error: str | None) -> None:
        """Why the source can't be read at present, and what to do; None: it works."""


class NoticeSource(Protocol):
    """One place where notices come from."""

    @property
    def name(self) -> str:
        """One word, as in `notices =` of the configuration and in `Notice.source`."""

    @property
    def shortest_s(self) -> float | None:
        """The shortest warning this source gives before the host is gone (s); None if it promises none."""

    async def watch(self, sink: NoticeSink) -> None:
        """Reports to `sink` until cancelled. Never raises: errors go to `sink.on_source_health`."""

    async def acknowledge(self, id: str) -> None:
        """Tells the provider that it need not wait any longer; does nothing where the provider doesn't wait."""


def read_clocks() -> ClockReading:
    """The present moment."""
    now = time.monotonic()
    return ClockReading(now, datetime.now(UTC), time.clock_gettime(time.CLOCK_BOOTTIME) - now)
