"""Passes notices from their sources to the programs.

Sources report what they see (a `NoticeSink`); `ActiveNotices` in the core decides what is new, changed, withdrawn or
expired. After a change each program gets one event, if another notice is now the most severe one that concerns it: a
program that hears nothing new does nothing. Many may begin to train when a notice ends, so they are told in several
turns of the event loop. The notices are stored for the next daemon of this boot.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from supervisor.core.notices.active import (
    SLEPT_S,
    ActiveNotice,
    ActiveNotices,
    NoticeChange,
    NoticeChangeKind,
    RememberedNotice,
    is_more_severe,
)
from supervisor.core.notices.notice import ClockReading, Notice, NoticeReport
from supervisor.core.program import events
from supervisor.host.notices.source import NoticeSource, read_clocks
from supervisor.host.notices.store import NoticeSaver, NoticeStore, NoticeStoreError
from supervisor.host.service.loop_share import LoopShare
from supervisor.runner.fleet.acknowledgements import Acknowledgements
from supervisor.runner.fleet.expected_times import ExpectedTimes
from supervisor.runner.program.runner import Runner

CHECK_SLEEP_S = 5.0  # how often it is checked, while a notice with a time holds, whether the host was suspended
SETTLE_S = 5.0  # from a source's first answer until each of its endpoints has answered; they are all asked at once
SAVED_WITHIN_S = 5.0  # before the daemon leaves; runtime_dir is in memory, as a rule
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How a source does. `error`: why it can't be read at present, None: it works."""

    name: str
    shortest_s: float | None
    error: str | None


class NoticeDispatcher:
    """Passes on what becomes of `notices`, after `expected_times` was told of it.

    `share`: of the event loop, for all programs. `store`: where the next daemon of this boot finds the notices; None:
    nowhere.
    """

    def __init__(
        self,
        notices: ActiveNotices,
        expected_times: ExpectedTimes,
        runners: Mapping[str, Runner],
        share: LoopShare,
        store: NoticeStore | None = None,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._notices = notices
        self._expected_times = expected_times
        self._runners = runners
        self._share = share
        self._untold: list[Runner] = []
        self._telling: asyncio.Handle | None = None
        self._store = store
        self._saver = None if store is None else NoticeSaver(store, _say_not_kept)
        self._stored: list[RememberedNotice] = []
        self._settle_s = settle_s
        self._sources: tuple[NoticeSource, ...] = ()
        self._errors: dict[str, str] = {}  # by source
        self._tasks: list[asyncio.Task[None]] = []
        self._acknowledgements = Acknowledgements(runners)
        self._settle_timers: dict[str, asyncio.TimerHandle] = {}  # by source
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._asleep_s = read_clocks().asleep_s

    # --- for status and metrics ---------------------------------------------------------------------------------------

    @property
    def by_severity(self) -> tuple[ActiveNotice, ...]:
        """The notices that hold, the most severe first."""
        return self._notices.by_severity

    @property
    def source_health(self) -> tuple[SourceHealth, ...]:
        """Every source, and whether it works."""
        return tuple(
            SourceHealth(source.name, source.shortest_s, self._errors.get(source.name)) for source in self._sources
        )

    @property
    def shortest_s(self) -> float | None:
        """The shortest warning that any source of this host gives (s); None if none promises one."""
        return min((source.shortest_s for source in self._sources if source.shortest_s is not None), default=None)

    # --- life ---------------------------------------------------------------------------------------------------------

    def watch_sources(self, sources: Iterable[NoticeSource]) -> None:
        """Restores what an earlier daemon knew, and starts to watch `sources`.

        Call it before programs are started: a job that waits because the host goes away has to go on waiting.
        """
        self._sources = tuple(sources)
        self._restore_notices()
        self._tasks = [self._loop.create_task(self._watch_source(source)) for source in self._sources]
        log.info("notices.watched", sources=[source.name for source in self._sources], shortest_s=self.shortest_s)

    async def stop_watching(self) -> None:
        """Stops all sources; providers that were not told to go ahead yet are not told any more."""
        tasks = [*self._tasks, *self._acknowledgements.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for handle in (*self._settle_timers.values(), *filter(None, [self._expiry_timer, self._telling])):
            handle.cancel()
        if self._saver is not None:
            await self._saver.flush(SAVED_WITHIN_S)

    def post_current_notice(self, runner: Runner) -> None:
        """Tells a new program which notice holds for it, if any."""
        self._expected_times.post()
        notice = self._notices.most_severe(runner.name)
        if notice is not None:
            runner.post(events.NoticeReceived(notice, self._notices.is_restored(notice)))

    async def _watch_source(self, source: NoticeSource) -> None:
        try:
            await source.watch(self)
        except Exception as error:
            log.exception("internal.failed", source=source.name)
            self.on_source_health(
                source.name, f"stopped by an internal error: {error!r}; restart the daemon, and report it"
            )

    # --- notices in ---------------------------------------------------------------------------------------------------

    def on_report(self, source: str, endpoint: str, report: NoticeReport, now: ClockReading) -> None:
        """A source reports everything that one of its endpoints says; usually nothing has changed."""
        self._note_sleep(now.asleep_s)
        self._apply_changes(self._notices.update(source, endpoint, report, now))
        reporter = next((watched for watched in self._sources if watched.name == source), None)
        if reporter is not None:
            for notice in self._notices.confirmed(source):
                self._acknowledgements.acknowledge_when_safe(notice, reporter)

    def on_source_health(self, source: str, error: str | None) -> None:
        """A source works, or why it can't be read at present."""
        if error is None:
            if source not in self._settle_timers and self._notices.has_unconfirmed(source):
                self._settle_timers[source] = self._loop.call_later(self._settle_s, self._withdraw_unconfirmed, source)
            if self._errors.pop(source, None) is not None:
                log.info("notices.source_recovered", source=source)
        elif self._errors.get(source) != error:
            self._errors[source] = error
            log.warning("notices.source_troubled", source=source, error=error)

    def add(self, notice: Notice, program: str | None = None) -> None:
        """Adds a notice that the daemon itself makes: a drill, a signal. `program`: the only one that it concerns."""
        change = self._notices.add(notice, self._loop.time(), program)
        self._apply_changes([] if change is None else [change])

    def withdraw(self, source: str, id: str) -> None:
        """Removes a notice that was added with `add`."""
        change = self._notices.withdraw(source, id)
        self._apply_changes([] if change is None else [change])

    def _withdraw_unconfirmed(self, source: str) -> None:
        del self._settle_timers[source]
        if source not in self._errors:  # else an endpoint does not answer; once it does, this begins anew
            self._apply_changes(self._notices.withdraw_unconfirmed(source))

    def _expire(self) -> None:
        self._note_sleep(read_clocks().asleep_s)
        self._apply_changes(self._notices.expire(self._loop.time()))
        self._arm_expiry()

    def _note_sleep(self, asleep_s: float) -> None:
        """Moves the deadlines if the host was suspended since the last look."""
        slept_s = asleep_s - self._asleep_s
        if slept_s > SLEPT_S:
            self._asleep_s = asleep_s
            log.warning("host.slept", slept_s=round(slept_s, 1), effect="deadlines of notices are that much nearer")
            self._apply_changes(self._notices.host_slept(slept_s))

    # --- what follows -------------------------------------------------------------------------------------------------

    def _apply_changes(self, changes: list[NoticeChange]) -> None:
        for change in changes:
            self._log_change(change)
            if change.kind in (NoticeChangeKind.WITHDRAWN, NoticeChangeKind.EXPIRED):
                self._acknowledgements.withdraw(change.notice)
        if changes:
            self._post_to_programs()
            self._arm_expiry()
        self._store_notices()  # after the programs were told: a daemon that dies in between tells them twice

    def _post_to_programs(self) -> None:
        self._expected_times.post()
        self._untold = list(self._runners.values())
        if self._telling is None:
            self._tell_programs()

    def _tell_programs(self) -> None:
        """What holds for each by now; at least one in each turn of the event loop."""
        self._telling = None
        while self._untold:
            runner = self._untold.pop(0)
            event = _event_for(runner.facts.notice, self._notices.most_severe(runner.name))
            if event is not None:
                runner.post(event)
            if self._untold and self._share.is_used_up:
                self._telling = self._loop.call_soon(self._tell_programs)
                return

    def _arm_expiry(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
        expires_at = self._notices.next_expiry_at()
        if expires_at is None:
            self._expiry_timer = None
            return
        look_at = min(expires_at, self._loop.time() + CHECK_SLEEP_S)
        self._expiry_timer = self._loop.call_at(look_at, self._expire)

    def _log_change(self, change: NoticeChange) -> None:
        notice = change.notice
        deadline_s = None if notice.deadline_at is None else round(notice.deadline_at - self._loop.time(), 1)
        has_ended = change.kind in (NoticeChangeKind.WITHDRAWN, NoticeChangeKind.EXPIRED)
        write = log.info if has_ended else log.warning
        write(
            f"notice.{change.kind}",
            source=notice.source,
            id=notice.id,
            kind=str(notice.kind),
            certainty=str(notice.certainty),
            deadline_s=deadline_s,
            text=notice.text,
        )

    # --- across daemons -----------------------------------------------------------------------------------------------

    def _restore_notices(self) -> None:
        if self._store is None:
            return
        names = {source.name for source in self._sources}
        try:
            notices = [notice for notice in self._store.load() if notice.notice.source in names]
        except NoticeStoreError as error:
            log.error("notices.not_recalled", error=str(error), effect="jobs act again on a notice that still holds")
            return
        if not notices:
            return
        log.info("notices.recalled", notices=[f"{notice.notice.source} {notice.notice.id}" for notice in notices])
        self._notices.restore(notices)
        self._stored = self._to_remember()
        for runner in self._runners.values():
            self.post_current_notice(runner)
        self._expire()

    def _store_notices(self) -> None:
        remembered = self._to_remember()
        if self._saver is None or remembered == self._stored:
            return
        self._saver.save(remembered)
        self._stored = remembered

    def _to_remember(self) -> list[RememberedNotice]:
        return self._notices.to_remember(source.name for source in self._sources)


def deadline_wall_at(notice: Notice, now: float) -> float | None:
    """The deadline as Unix time, for people; None: the source gives no time. `now`: monotonic seconds."""
    return None if notice.deadline_at is None else time.time() + notice.deadline_at - now


def _say_not_kept(error: NoticeStoreError) -> None:
    log.warning("notices.not_kept", error=str(error), effect="after a restart jobs act on them again")


def _event_for(before: Notice | None, after: Notice | None) -> events.Event | None:
    """The event for a program whose notice was `before` and is now `after`; None if it is the same."""
    if after == before:
        return None
    if after is None:
        return events.NoticeEnded()
    is_same = before is not None and (before.source, before.id) == (after.source, after.id)
    if is_same and before is not None and before.certainty == after.certainty:
        return events.NoticeChanged(after)
    return events.NoticeReceived(after) if is_more_severe(after, before) else events.NoticeChanged(after)
