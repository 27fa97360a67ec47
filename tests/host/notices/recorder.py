"""A sink that remembers what changed, and lets a test wait for it."""

import asyncio
from collections.abc import Callable

from supervisor.core.notices.active import ActiveNotices, NoticeChangeKind
from supervisor.core.notices.notice import ClockReading, Notice, NoticeReport
from supervisor.host.notices.source import NoticeSource

PATIENCE_S = 30.0  # an event that does not come in so long does not come
GRACE_S = 1e9  # nothing expires


class Recorder:
    """What a source reports in these tests. `active`: the notices that hold, by id."""

    def __init__(self) -> None:
        self._notices = ActiveNotices(GRACE_S)
        self.received_all: list[Notice] = []
        self.withdrawn_ids: list[str] = []
        self.active: dict[str, Notice] = {}
        self.errors: list[str] = []
        self.error: str | None = None
        self.answers = 0
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None

    # --- the sink ---------------------------------------------------------------------------------------------------

    def on_report(self, source: str, endpoint: str, report: NoticeReport, now: ClockReading) -> None:
        """Remembers what the report changes."""
        for change in self._notices.update(source, endpoint, report, now):
            notice = change.notice
            if change.kind is NoticeChangeKind.WITHDRAWN:
                self.withdrawn_ids.append(notice.id)
                self.active.pop(notice.id)
            else:
                self.received_all.append(notice)
                self.active[notice.id] = notice
            self._changed.set()

    def on_source_health(self, source: str, error: str | None) -> None:
        """Remembers whether the source works."""
        self.error = error
        if error is None:
            self.answers += 1
        else:
            self.errors.append(error)
        self._changed.set()

    # --- for the test -----------------------------------------------------------------------------------------------

    def watch(self, source: NoticeSource) -> None:
        """Has `source` tell this recorder."""
        self._watching = asyncio.get_running_loop().create_task(source.watch(self))

    async def until(self, holds: Callable[[], object]) -> None:
        """Waits until `holds`; fails if the source ends instead, or nothing comes of it."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._changed.clear()
                if self._watching is not None and self._watching.done():
                    self._watching.result()
                    raise AssertionError("the source stopped watching")
                waiting = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait(
                    {waiting, *([self._watching] if self._watching else [])}, return_when=asyncio.FIRST_COMPLETED
                )
                waiting.cancel()

    async def the_notice(self) -> Notice:
        """The first notice that comes."""
        await self.until(lambda: self.received_all)
        return self.received_all[0]

    async def more_answers(self, number: int = 2) -> None:
        """Waits until the source got `number` more answers that it understood."""
        enough = self.answers + number
        await self.until(lambda: self.answers >= enough)

    async def close(self) -> None:
        """Ends the watch; a source that failed fails the test."""
        if self._watching is None:
            return
        self._watching.cancel()
        (ending,) = await asyncio.gather(self._watching, return_exceptions=True)
        assert isinstance(ending, asyncio.CancelledError), ending
