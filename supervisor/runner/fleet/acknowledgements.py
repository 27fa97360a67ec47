"""Tells a provider when it need not wait any longer, so that the host may go: once no job has anything to lose."""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

import structlog

from supervisor.core.notices.notice import Certainty, Notice
from supervisor.core.program import notice_plan
from supervisor.host.notices.source import NoticeSource
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

ACKNOWLEDGE_TIMEOUT_S = 10.0  # a metadata server answers in milliseconds, or not at all
log = structlog.get_logger()


class Acknowledgements:
    """Those that are due or done, one for each notice. `runners`: all programs."""

    def __init__(self, runners: Mapping[str, Runner]) -> None:
        self._runners = runners
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def acknowledge_when_safe(self, notice: Notice, source: NoticeSource) -> None:
        """A provider waits only for a certain notice with a deadline; a possible one is not acknowledged."""
        key = (notice.source, notice.id)
        if key in self._tasks or notice.certainty is not Certainty.CERTAIN or notice.deadline_at is None:
            return
        self._tasks[key] = asyncio.get_running_loop().create_task(self._acknowledge(source, notice.id))

    def withdraw(self, notice: Notice) -> None:
        """The notice does not hold any more."""
        task = self._tasks.pop((notice.source, notice.id), None)
        if task is not None:
            task.cancel()

    @property
    def tasks(self) -> Iterable[asyncio.Task[None]]:
        """What waits or is done; cancelling one withdraws it."""
        return self._tasks.values()

    async def _acknowledge(self, source: NoticeSource, id: str) -> None:
        """Waits until no job has anything to lose, then tells the provider.

        What an earlier daemon left of a job, a worker or an upload, is taken up first: before, nobody knows. While one
        job is waited for, another may begin to train, so all are looked at again after each wait.
        """
        while (runner := next(filter(_may_lose, self._runners.values()), None)) is not None:
            await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)
            await runner.wait_until(partial(_loses_nothing, runner))
        try:
            async with asyncio.timeout(ACKNOWLEDGE_TIMEOUT_S):
                await source.acknowledge(id)
        except Exception as error:  # noqa: BLE001 - the host goes away anyway, only later
            log.warning("notice.not_acknowledged", source=source.name, id=id, error=repr(error))
        else:
            log.info("notice.acknowledged", source=source.name, id=id)


def _loses_nothing(runner: Runner) -> bool | None:
    return None if _may_lose(runner) else True


def _may_lose(runner: Runner) -> bool:
    """Whether something of a job would be lost if the host went now; also what a dead worker left in memory counts."""
    is_writing = runner.memory is not None and runner.memory.is_writing
    is_settled = runner.takeover.is_adoption_settled
    return is_writing or not (is_settled and notice_plan.has_nothing_to_lose(runner.facts))
