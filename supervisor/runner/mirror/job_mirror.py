"""A job's copy in an object store: what is fetched before a launch, and uploaded beside training.

Supervision never waits for the store, but for one thing: a host that has no checkpoint asks there before the job
starts. While a job trains, its newest checkpoint is uploaded, one at a time; what becomes older meanwhile is left out.
An error is retried, and `status` shows it. What an earlier daemon left undone is taken up first (`resume`).

With `durable = remote` a flush is over once its checkpoint is in the store. The core plans for that with what it is
told here (UploadsChanged): whether a checkpoint waits for the store, and how long the next upload is going to take.
While the host is about to go, or the program leaves for good, uploads are not held back, and errors are retried soon.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.program import effects, events, notice_plan
from supervisor.core.program.facts import ALIVE, ProgramFacts, State
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorError, RunFenced
from supervisor.protocol.layout import CheckpointName, own_name, parse_name
from supervisor.protocol.wire import messages as worker_messages
from supervisor.runner.attempt.services import Services
from supervisor.runner.mirror.asking import MirrorStatus, client_of
from supervisor.runner.mirror.epoch_watch import EpochWatch
from supervisor.runner.mirror.exchange import StoreExchange
from supervisor.runner.mirror.hold import RunHold, name_of
from supervisor.runner.mirror.part_commits import PartCommits
from supervisor.runner.records.observers import ProgramObserver

RETRY_S = 30.0  # a store that is down for a moment is no reason to be far behind
URGENT_RETRY_S = 1.0  # while somebody waits: as for a save that failed
DAMAGED_RETRY_S = 3600.0  # what a disk has changed is sent whole each time; it may have been the memory that read it


class JobMirror(ProgramObserver):
    """The mirror of one job. `post` takes the event that another host has taken the run over.

    `on_change` is called when a checkpoint has reached the store, or could not. `answer`: to the worker that waits for
    that.
    """

    def __init__(
        self,
        config: ProgramConfig,
        services: Services,
        post: Callable[[events.Event], None],
        on_change: Callable[[], None],
        log: FilteringBoundLogger,
        answer: Callable[[worker_messages.Mirrored], None] = lambda message: None,
    ) -> None:
        assert config.job is not None and config.job.mirror is not None
        self.error: str | None = None
        """Why the newest checkpoint is not in the store yet; None while nothing is wrong."""
        self.failures = 0
        """How many times an upload, or what has to come before it, has failed so far."""
        self.is_awaited = config.job.durable == "remote"
        """Whether a flush is over only once its checkpoint is in the store."""
        self.is_finished = False
        """The program is gone for good: nothing is tried again."""
        self._folder = config.job.checkpoint_dir
        self._is_limited = config.job.mirror_rate_limit is not None
        self._client, self._url = client_of(config, services.environment)
        self._post = post
        self._on_change = on_change
        self._log = log
        self._expected_upload_s: float | None = None
        has_parts = services.parts_of(config.job) is not None
        self._hold = RunHold(uploads_start=not has_parts)
        self._exchange = StoreExchange(
            config.name, self._url, self._client, self._hold, services.upload_durations, post, log
        )
        self.parts: PartCommits | None = None
        """In a gang whose nodes have folders of their own: how checkpoints are committed."""
        if has_parts and services.gang is not None:
            self.parts = PartCommits(services.gang, self._exchange, self._hold, answer)
        self._background = BackgroundTasks(log)
        self._watch = EpochWatch(self._client, self._hold, self._lose_run, self._background)
        self._task: asyncio.Task[None] | None = None
        self._is_urgent = False
        self._is_damaged = False  # the checkpoint that was tried last
        self._retry_now = asyncio.Event()
        self._reported: events.UploadsChanged | None = None

    # --- for those who look -------------------------------------------------------------------------------------------

    @property
    def status(self) -> MirrorStatus:
        """How far it is."""
        hold, lacking_since = self._hold, self._hold.lacking_since()
        return MirrorStatus(
            self._url,
            hold.epoch,
            None if hold.newest is None else hold.newest.step,
            hold.wanted,
            self.error if self.error is not None else self._watch.error,
            0.0 if lacking_since is None else time.monotonic() - lacking_since,
            self._exchange.request,
            self._watch.silent_s,
        )

    @property
    def newest(self) -> CheckpointName | None:
        """The newest checkpoint in the store; None if there is none or it is not known."""
        return self._hold.newest

    @property
    def names(self) -> tuple[str, ...]:
        """The checkpoints in the store that count, newest first, as far as known."""
        return self._hold.names

    @property
    def waits(self) -> bool:
        """Whether a checkpoint is going to be uploaded."""
        return self._hold.waits

    def has(self, name: str) -> bool:
        """Whether the store has this checkpoint, or a newer one."""
        wanted, newest = parse_name(name), self._hold.newest
        return wanted is not None and newest is not None and newest >= wanted

    # --- before a launch ----------------------------------------------------------------------------------------------

    async def look(self) -> int:
        """The highest attempt that the store has: the next one here needs a higher number. Raises MirrorError."""
        return await self._exchange.look()

    async def has_gone_on(self) -> bool:
        """Whether another host has trained and uploaded since an attempt began here last. Raises MirrorError."""
        return await self._exchange.has_gone_on()

    def may_have_newer(self, local: str | None) -> bool:
        """Whether the store may have a newer checkpoint than the newest whole one here."""
        return self._hold.may_have_newer(name_of(local))

    async def fetch(
        self, local: str | None, below: int | None, unwanted: Collection[str], is_chosen: bool = False
    ) -> messages.FetchAnswer:
        """Gets the newest checkpoint of the store into the folder, if it is newer than `local` and below a step.

        `is_chosen`: an operator has said that training goes on from there. Raises MirrorError.
        """
        answer = await self._exchange.fetch(local, below, unwanted, is_chosen)
        self.error = None
        return answer

    def on_effect(self, effect: effects.Effect, now: float) -> None:
        """While a checkpoint is selected, it is not known yet what this host goes on from.

        It is not to wait for the upload of a part, which nobody commits any more.
        """
        if isinstance(effect, effects.SelectCheckpoint):
            self._hold.is_selecting = True
            if self._exchange.sends_part:
                self._client.close()

    def on_selected(self, effect: effects.SendGo) -> None:
        """An attempt begins from this checkpoint: what the store has beyond it is on another line."""
        name = own_name(effect.restore, self._folder)
        self._hold.pass_over(parse_name(effect.passed_over or ""))
        self._hold.begin_attempt(name, effect.gives_up_newer, time.monotonic())
        if self.parts is not None:
            self.parts.announce(effect)
        self._report()
        self._work()

    def resume(self) -> None:
        """Takes up the upload that an earlier daemon may have left. Until it is known, a flush is not over."""
        if self.parts is None and self._hold.resume():
            self._report()
            self._work()

    def adopt(self, passed_over: str | None) -> None:
        """Goes on with a worker of an earlier daemon. `passed_over`: what its start, or an earlier one, did."""
        name = parse_name(passed_over or "")
        if name is None:
            self.resume()
        else:
            self._hold.go_on_without(name)
            self._report()

    # --- beside training ----------------------------------------------------------------------------------------------

    def on_message(self, message: worker_messages.FromWorker, now: float) -> None:
        """A commit is to be uploaded; a first step takes the run."""
        is_news = False
        if isinstance(message, worker_messages.Progress):
            is_news = self._hold.begin_training()
        elif isinstance(message, worker_messages.Committed) and (name := parse_name(message.checkpoint)) is not None:
            is_news = self._hold.add_commit(name, now - (message.ago_s or 0.0))
        elif isinstance(message, worker_messages.PartsWritten) and self.parts is not None:
            is_news = self.parts.on_written(message, now)
        if is_news:
            self._report()
            self._work()

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        """While somebody waits for an upload, nothing holds it back; while the job runs, the epochs are watched."""
        self._watch.update(is_running=facts.state in ALIVE)
        waits = self.is_awaited or self.parts is not None
        is_urgent = waits and (facts.closing or notice_plan.host_gone_at(facts) is not None)
        if is_urgent is not self._is_urgent:
            self._is_urgent = is_urgent
            self._client.lift_limit(is_urgent)
            if is_urgent:
                self.retry_now()

    def expect(self, upload_s: float) -> None:
        """The next upload is expected to take so long, beside those of other jobs."""
        self._expected_upload_s = upload_s
        self._report()

    def retry_now(self) -> None:
        """Tries again what waits for its next try."""
        self._retry_now.set()

    def _lose_run(self, fenced: RunFenced) -> None:
        """Another host goes on with the run."""
        self._hold.lose()
        self.error = str(fenced)
        self.failures += 1
        self._report()
        self._post(events.RunTakenOver(f"{fenced}; start the job here only if it is to go on here"))

    def _report(self) -> None:
        """Tells the core what is new, if a flush waits for the store.

        A store that fails at present is not planned with: nobody knows how long that lasts.
        """
        news = events.UploadsChanged(self.waits, self._expected_upload_s if self.error is None else None)
        if self.is_awaited and news != self._reported:
            self._reported = news
            self._post(news)

    # --- what is asked, one question after another --------------------------------------------------------------------

    def _work(self) -> None:
        if self._is_damaged:  # there is another one to be tried
            self.retry_now()
        if self._task is None or self._task.done():
            self._task = self._background.start(self._work_until_done())

    async def _work_until_done(self) -> None:
        try:
            while self._hold.has_work and await self._ask_next():
                pass
        finally:
            if self.is_finished:
                self._client.close()
        if not self.waits:
            self._on_change()

    async def _ask_next(self) -> bool:
        """Does what comes next; False if nothing is to be tried any more."""
        hold, starts = self._hold, self._hold.starts
        try:
            if hold.is_resuming:
                await self._exchange.look_for_unfinished()
            elif hold.epoch is None:
                await self._exchange.begin_epoch()
            elif hold.wanted is not None:
                is_limited = self._is_limited and not self._is_urgent
                copy = self._exchange.upload if self.parts is None else self.parts.commit
                await copy(hold.wanted, hold.epoch, is_limited)
            self.error = None
            self._report()
            self._on_change()
        except RunFenced as fenced:
            if hold.is_finishing:
                hold.give_up_finishing()
                self._report()
            elif starts == hold.starts and hold.is_begun:
                self._lose_run(fenced)
        except MirrorError as error:
            return await self._pause_after(error)
        except Exception as error:  # noqa: BLE001 - or nothing more would reach the store, unseen
            self._log.exception("internal.failed")
            return await self._pause_after(MirrorError(f"internal error {error!r:.200}; the log has the traceback"))
        return True

    async def _pause_after(self, error: MirrorError) -> bool:
        """Says what is wrong, and waits until it is to be tried again; False if it is not."""
        if self.error is None:
            retry_in_s = DAMAGED_RETRY_S if error.is_damaged else RETRY_S
            self._log.warning("mirror.failed", error=str(error), retry_in_s=retry_in_s)
        if error.epoch_lost:
            self._hold.forget_epoch()
        self.error = str(error)
        self.failures += 1
        if self.parts is not None:
            self.parts.on_failure(error)
        self._report()
        self._on_change()
        if self.is_finished:
            return False
        self._retry_now.clear()
        self._is_damaged = error.is_damaged
        pause_s = DAMAGED_RETRY_S if error.is_damaged else URGENT_RETRY_S if self._is_urgent else RETRY_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._retry_now.wait()
        return True

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The program is gone for good: what is being uploaded may end, and nothing is tried again."""
        self.is_finished = True
        self._watch.stop()
        if self._task is None or self._task.done():
            self._client.close()
        self._retry_now.set()
        self._on_change()

    def close(self) -> None:
        """Ends the process; the next daemon goes on."""
        self._watch.stop()
        if self._task is not None:
            self._task.cancel()
        self._client.close()
