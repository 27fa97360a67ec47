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
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError, RunFenced
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.keys import run_of
from supervisor.protocol.wire import messages as worker_messages
from supervisor.runner.attempt.services import Services
from supervisor.runner.mirror.asking import MirrorQuestions, MirrorStatus
from supervisor.runner.mirror.epoch_watch import EpochWatch
from supervisor.runner.mirror.hold import RunHold, name_of
from supervisor.runner.records.observers import ProgramObserver

RETRY_S = 30.0  # a store that is down for a moment is no reason to be far behind
URGENT_RETRY_S = 1.0  # while somebody waits: as for a save that failed
LOOK_TIMEOUT_S = 5.0  # how long a start on a new host waits to learn which numbers are used: else one attempt learns it


class JobMirror(ProgramObserver):
    """The mirror of one job. `post` takes the event that another host has taken the run over.

    `on_change` is called when a checkpoint has reached the store, or could not.
    """

    def __init__(
        self,
        config: ProgramConfig,
        services: Services,
        post: Callable[[events.Event], None],
        on_change: Callable[[], None],
        log: FilteringBoundLogger,
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
        self._name = config.name
        run = run_of(config.name)
        self._url = f"{config.job.mirror.rstrip('/')}/{run}"
        settings = MirrorSettings(
            url=config.job.mirror,
            run=run,
            folder=config.job.checkpoint_dir,
            keep=config.job.mirror_keep,
            bytes_per_s=config.job.mirror_rate_limit,
        )
        self._is_limited = config.job.mirror_rate_limit is not None
        self._post = post
        self._on_change = on_change
        self._log = log
        self._durations = services.upload_durations
        self._expected_upload_s: float | None = None
        self._client = MirrorClient(settings, services.environment, config.environment, config.user)
        self._questions = MirrorQuestions(self._client)
        self._hold = RunHold()
        self._watch = EpochWatch(self._client, self._hold, self._lose_run)
        self._task: asyncio.Task[None] | None = None
        self._is_urgent = False
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
            self._questions.request,
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
        question = messages.FetchRequest(self._client.next_id(), only_look=True)
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                self._learn(await self._questions.ask("asking the mirror", question, messages.FetchAnswer))
        except TimeoutError:
            raise MirrorError(f"the store did not answer within {LOOK_TIMEOUT_S:g} s") from None
        return self._hold.attempt

    def may_have_newer(self, local: str | None) -> bool:
        """Whether the store may have a newer checkpoint than the newest whole one here."""
        return self._hold.may_have_newer(name_of(local))

    async def fetch(self, local: str | None, below: int | None, unwanted: Collection[str]) -> messages.FetchAnswer:
        """Gets the newest checkpoint of the store into the folder, if it is newer than `local` and below a step.

        Raises MirrorError.
        """
        name = name_of(local)
        question = messages.FetchRequest(
            self._client.next_id(),
            None if name is None else str(name),
            below,
            unwanted=tuple(sorted(unwanted)),
            epoch=self._hold.epoch or 0,
        )
        there = await self._questions.ask("fetching from the mirror", question, messages.FetchAnswer)
        self._learn(there)
        for refused in there.bad:
            self._log.warning("mirror.refused", checkpoint=refused)
        if there.name is not None:
            self._log.info("mirror.fetched", checkpoint=there.name)
        self.error = None
        return there

    def _learn(self, there: messages.FetchAnswer) -> None:
        self._hold.learn(there)
        if there.seen is not None:
            self._post(events.CheckpointMirrored(there.seen, self._url, there.epoch))

    def on_effect(self, effect: effects.Effect, now: float) -> None:
        """While a checkpoint is selected, it is not known yet what this host goes on from."""
        if isinstance(effect, effects.SelectCheckpoint):
            self._hold.is_selecting = True

    def on_selected(self, path: str | None, gives_up_newer: bool = False) -> None:
        """An attempt begins from this checkpoint: what the store has beyond it is on another line.

        `gives_up_newer`: an operator has given up whatever there is beyond it.
        """
        self._hold.begin_attempt(name_of(path), gives_up_newer, time.monotonic())
        self._report()
        self._work()

    def resume(self) -> None:
        """Takes up the upload that an earlier daemon may have left. Until it is known, a flush is not over."""
        if self._hold.resume():
            self._report()
            self._work()

    # --- beside training ----------------------------------------------------------------------------------------------

    def on_message(self, message: worker_messages.FromWorker, now: float) -> None:
        """A commit is to be uploaded; a first step takes the run."""
        is_news = False
        if isinstance(message, worker_messages.Progress):
            is_news = self._hold.begin_training()
        elif isinstance(message, worker_messages.Committed) and (name := parse_name(message.checkpoint)) is not None:
            is_news = self._hold.add_commit(name, now - (message.ago_s or 0.0))
        if is_news:
            self._report()
            self._work()

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        """While somebody waits for an upload, nothing holds it back; while the job runs, the epochs are watched."""
        self._watch.update(is_running=facts.state in ALIVE)
        is_urgent = self.is_awaited and (facts.closing or notice_plan.host_gone_at(facts) is not None)
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
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work_until_done())

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
                await self._look_for_unfinished()
            elif hold.epoch is None:
                await self._begin_epoch()
            elif hold.wanted is not None:
                await self._upload(hold.wanted, hold.epoch)
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
            if self.error is None:
                self._log.warning("mirror.failed", error=str(error), retry_in_s=RETRY_S)
            if error.epoch_lost:
                hold.forget_epoch()
            self.error = str(error)
            self.failures += 1
            self._report()
            self._on_change()
            if self.is_finished:
                return False
            self._retry_now.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._retry_now.wait(), URGENT_RETRY_S if self._is_urgent else RETRY_S)
        return True

    async def _look_for_unfinished(self) -> None:
        """Has the newest checkpoint here uploaded, unless the store has it, or another host has left it behind."""
        hold, there = self._hold, None
        here = await self._client.ask(messages.NewestLocalRequest(self._client.next_id()), messages.NewestLocalAnswer)
        known = filter(None, (name_of(here.name), name_of(hold.wanted)))  # an adopted worker may have committed since
        local = max(known, default=None)
        if local is not None and hold.is_resuming:
            question = messages.FetchRequest(self._client.next_id(), only_look=True)
            there = await self._questions.ask("asking the mirror", question, messages.FetchAnswer)
        if not hold.is_resuming:
            return  # an attempt has begun meanwhile
        if hold.settle_resume(local, there, time.monotonic()):
            self._log.info("mirror.resumed", checkpoint=hold.wanted)

    async def _begin_epoch(self) -> None:
        hold = self._hold
        start, starts, here = hold.start, hold.starts, hold.newest_here
        question = messages.BeginEpochRequest(
            self._client.next_id(),
            None if here is None else str(here),
            hold.known,
            None if hold.seen is None else str(hold.seen),
            hold.is_anew,
        )
        begun = await self._questions.ask("taking the run over in the mirror", question, messages.EpochAnswer)
        self._log.info("mirror.epoch_begun", epoch=begun.epoch, start=start, newer=begun.newer)
        if (newer := hold.begin_epoch(begun, here, starts)) is not None:
            text = f"another host has uploaded step {newer.step} since this attempt began; it begins again from there"
            self._post(events.CheckpointOutdated(text))

    async def _upload(self, name: str, epoch: int) -> None:
        began_at, is_limited = time.monotonic(), self._is_limited and not self._is_urgent
        try:
            question = messages.UploadRequest(self._client.next_id(), name, epoch)
            done = await self._questions.ask("uploading", question, messages.UploadAnswer, checkpoint=name)
        except MirrorError as error:
            if not error.is_gone:
                raise
            self._hold.drop_wanted(name)  # retention was faster: there is a newer one
            return
        self._hold.add_upload(name, done.remote)
        if (newest := self._hold.newest) is not None:
            self._post(events.CheckpointMirrored(str(newest), self._url, epoch))
        self._log.info("mirror.uploaded", checkpoint=name, size_bytes=done.size_bytes, took_s=round(done.took_s, 3))
        now = time.monotonic()
        self._durations.record_upload(self._name, now - began_at, now, is_limited)

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
