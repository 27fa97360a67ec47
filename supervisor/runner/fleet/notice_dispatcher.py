"""Between the sources of notices and the programs: what holds, who is told, when a provider gets its answer."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from supervisor.core.notices.active import (
    ActiveNotice,
    ActiveNotices,
    NoticeChange,
    NoticeChangeKind,
    is_more_severe,
)
from supervisor.core.notices.notice import Certainty, Notice
from supervisor.core.program import events as fact
from supervisor.core.program import outlook
from supervisor.host.notices.source import NoticeSource
from supervisor.host.notices.store import NoticeStore, NoticeStoreError
from supervisor.runner.program.runner import Runner
from supervisor.runner.records.saves import SaveDurations

TELLS_ALL_S = 5.0  # from a source's first answer until it has said what there is; all its questions are asked at once
ACKNOWLEDGE_S = 10.0  # a metadata server answers in milliseconds or is away
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SourceHealth:
    """How a source does. `trouble`: why it can't be asked at present, None: it works."""

    name: str
    shortest_s: float | None
    error: str | None


class NoticeDispatcher:
    """Is told by the sources, keeps the board, and tells every program what concerns it.

    `memory`: where the next daemon of this boot finds what this one heard; None: nowhere.
    """

    def __init__(
        self,
        saves: SaveDurations,
        grace_s: float,
        runners: Callable[[], Mapping[str, Runner]],
        memory: NoticeStore | None = None,
        tells_all_s: float = TELLS_ALL_S,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._board = ActiveNotices(grace_s)
        self._memory = memory
        self._tells_all_s = tells_all_s
        self._confirming: dict[str, asyncio.TimerHandle] = {}
        self._saves = saves
        self._runners = runners
        self._sources: tuple[NoticeSource, ...] = ()
        self._troubles: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._answers: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        saves.on_change = self._tell_saves

    # --- for those who look ------------------------------------------------------------------------------------------

    @property
    def by_severity(self) -> tuple[ActiveNotice, ...]:
        """The notices that hold, the gravest first."""
        return self._board.by_severity

    @property
    def source_health(self) -> tuple[SourceHealth, ...]:
        """Every source, and how it does."""
        return tuple(SourceHealth(each.name, each.shortest_s, self._troubles.get(each.name)) for each in self._sources)

    @property
    def shortest_s(self) -> float | None:
        """The shortest warning that any source of this host gives (s); None if none promises one."""
        return min((each.shortest_s for each in self._sources if each.shortest_s is not None), default=None)

    def flush_times_s(self) -> dict[str, float]:
        """How long each job's flush takes (s) with one step and the margin, all jobs flushing; measured jobs only."""
        runners = self._runners()
        saves = self._saves.expected_s([name for name, runner in runners.items() if outlook.can_flush(runner.facts)])
        return {
            name: outlook.step_s(runners[name].facts) + save_s + runners[name].facts.policy.notice_margin
            for name, save_s in saves.items()
            if name in runners
        }

    # --- life ---------------------------------------------------------------------------------------------------------

    def watch_sources(self, sources: Iterable[NoticeSource]) -> None:
        """Starts to listen to `sources`, knowing what an earlier daemon heard of them.

        Before programs are started: who waited for the host's fate goes on waiting.
        """
        self._sources = tuple(sources)
        self._recall()
        self._tasks = [self._loop.create_task(self._watch(each)) for each in self._sources]
        log.info("notices.watched", sources=[each.name for each in self._sources], shortest_s=self.shortest_s)

    async def stop_watching(self) -> None:
        """Stops listening; who still waits to be answered is not."""
        tasks = [*self._tasks, *self._answers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for timer in (*self._confirming.values(), *filter(None, [self._timer])):
            timer.cancel()

    def _recall(self) -> None:
        if self._memory is None:
            return
        names = {each.name for each in self._sources}
        try:
            found = [each for each in self._memory.load() if each.notice.source in names]
        except NoticeStoreError as error:
            log.error("notices.not_recalled", error=str(error), effect="a notice that still holds is acted on anew")
            return
        if not found:
            return
        log.info("notices.recalled", notices=[f"{each.notice.source} {each.notice.id}" for each in found])
        self._board.restore(found)
        for runner in self._runners().values():
            self.post_current_notice(runner)
        self._expire()

    def _keep(self) -> None:
        if self._memory is None:
            return
        try:
            self._memory.save(self._board.to_remember(each.name for each in self._sources))
        except NoticeStoreError as error:
            log.warning("notices.not_kept", error=str(error), effect="after a restart they are acted on anew")

    async def _watch(self, source: NoticeSource) -> None:
        try:
            await source.watch(self)
        except Exception as error:
            log.exception("internal.failed", source=source.name)
            self.troubled(source.name, f"stopped by a mistake of its own: {error!r}; restart the daemon, and report it")

    def post_current_notice(self, runner: Runner) -> None:
        """A program was taken into use: it hears what holds."""
        self._tell_saves()
        notice = self._board.most_severe(runner.name)
        if notice is not None:
            runner.post(fact.NoticeReceived(notice, self._board.is_restored(notice)))

    # --- what sources say (a Sink) ------------------------------------------------------------------------------------

    def received(self, notice: Notice, program: str | None = None) -> None:
        """A notice is there; telling it twice does no harm. `program`: it is meant for one only."""
        before = self._fears()
        news = self._board.add(notice, self._loop.time(), program)
        self._after(before, [] if news is None else [news])
        if any((each.notice.source, each.notice.id) == (notice.source, notice.id) for each in self._board.by_severity):
            self._answer_later(notice)

    def withdrawn(self, source: str, id: str) -> None:
        """The notice no longer holds."""
        before = self._fears()
        news = self._board.withdraw(source, id)
        self._after(before, [] if news is None else [news], keeps=True)

    def troubled(self, source: str, error: str | None) -> None:
        """A source can't be asked at present; None: it works (again)."""
        if error is None:
            if source not in self._confirming and self._board.has_unconfirmed(source):
                self._confirming[source] = self._loop.call_later(self._tells_all_s, self._confirm, source)
            if self._troubles.pop(source, None) is not None:
                log.info("notices.source_recovered", source=source)
        elif self._troubles.get(source) != error:
            self._troubles[source] = error
            log.warning("notices.source_troubled", source=source, error=error)

    def _confirm(self, source: str) -> None:
        del self._confirming[source]
        if source in self._troubles:  # one of its questions is open; the answer to that begins this anew
            return
        before = self._fears()
        self._after(before, self._board.withdraw_unconfirmed(source), keeps=True)

    # --- what follows -------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        self._timer = None
        before = self._fears()
        self._after(before, self._board.expire(self._loop.time()))

    def _fears(self) -> dict[str, Notice | None]:
        return {name: self._board.most_severe(name) for name in self._runners()}

    def _after(self, before: Mapping[str, Notice | None], news: list[NoticeChange], keeps: bool = False) -> None:
        """`keeps`: what is to be kept is different, even if nothing is news."""
        for each in news:
            self._tell_log(each)
            key = (each.notice.source, each.notice.id)
            if (
                each.kind in (NoticeChangeKind.WITHDRAWN, NoticeChangeKind.EXPIRED)
                and (answer := self._answers.pop(key, None)) is not None
            ):
                answer.cancel()
        self._tell_saves()
        for name, runner in list(self._runners().items()):
            event = _change(before.get(name), self._board.most_severe(name))
            if event is not None:
                runner.post(event)
        if news or keeps:
            self._keep()  # after the programs were told: who dies in between tells them twice rather than never
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        over_at = self._board.next_expiry_at()
        self._timer = None if over_at is None else self._loop.call_at(over_at, self._expire)

    def _tell_saves(self) -> None:
        """While a notice holds, every job hears how long its save takes if all whom it concerns save at once."""
        if not self._board.by_severity:
            return
        runners = self._runners()
        finishing = [
            name for name in runners if self._board.most_severe(name) and outlook.can_flush(runners[name].facts)
        ]
        for name, save_s in self._saves.expected_s(finishing).items():
            runner = runners.get(name)
            if runner is not None and save_s != runner.facts.save_s:
                runner.post(fact.SavesMeasured(save_s))

    def _answer_later(self, notice: Notice) -> None:
        """Only a certain notice with a time is waited for by a provider; a possible one is not answered."""
        key, source = (notice.source, notice.id), self._source(notice.source)
        if source is None or key in self._answers:
            return
        if notice.certainty is Certainty.CERTAIN and notice.deadline_at is not None:
            self._answers[key] = self._loop.create_task(self._answer(source, notice.id))

    async def _answer(self, source: NoticeSource, id: str) -> None:
        """Tells the provider once no job has anything to lose any more."""
        for runner in list(self._runners().values()):
            await runner.wait_until(partial(_nothing_to_lose, runner))
        try:
            await asyncio.wait_for(source.acknowledge(id), ACKNOWLEDGE_S)
        except Exception as error:  # noqa: BLE001 - the host goes anyway, only later
            log.warning("notice.not_acknowledged", source=source.name, id=id, error=repr(error))
        else:
            log.info("notice.acknowledged", source=source.name, id=id)

    def _source(self, name: str) -> NoticeSource | None:
        return next((each for each in self._sources if each.name == name), None)

    def _tell_log(self, news: NoticeChange) -> None:
        notice = news.notice
        deadline_s = None if notice.deadline_at is None else round(notice.deadline_at - self._loop.time(), 1)
        tell = log.info if news.kind in (NoticeChangeKind.WITHDRAWN, NoticeChangeKind.EXPIRED) else log.warning
        tell(
            f"notice.{news.kind}",
            source=notice.source,
            id=notice.id,
            kind=str(notice.kind),
            certainty=str(notice.certainty),
            deadline_s=deadline_s,
            text=notice.text,
        )


def _nothing_to_lose(runner: Runner) -> bool | None:
    return outlook.has_nothing_to_lose(runner.facts) or None


def deadline_wall_at(notice: Notice, now: float) -> float | None:
    """The deadline as Unix time, for people; None: the source says no time. `now`: monotonic seconds."""
    return None if notice.deadline_at is None else time.time() + notice.deadline_at - now


def _change(before: Notice | None, after: Notice | None) -> fact.Event | None:
    """What a program is to hear; None: nothing that decides for it is different."""
    if after == before:
        return None
    if after is None:
        return fact.NoticeEnded()
    if before is not None and (before.source, before.id, before.certainty) == (after.source, after.id, after.certainty):
        return fact.NoticeChanged(after)
    return fact.NoticeReceived(after) if is_more_severe(after, before) else fact.NoticeChanged(after)
