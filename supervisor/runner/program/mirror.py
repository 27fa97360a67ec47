"""A job's copy in an object store: what is fetched before a launch, and uploaded beside training.

Supervision never waits for the store, but for one thing: a host that has no checkpoint asks there before the job
starts. While a job trains, its newest checkpoint is uploaded, one at a time; what becomes older meanwhile is left out.
An error is retried, and `status` shows it. What an earlier daemon left undone is taken up first (`resume`).

**When the run is taken.** Fetching takes nothing from anybody. A host takes the run over, by an epoch of its own, once
an attempt has done its first step: one that can't restore what it found, or fails before it trains, leaves the host
that has the run alone. A host that has the run already, and an operator who begins from scratch, need not wait for
that. If the earlier host has uploaded a checkpoint since this one fetched, the attempt begins again from that
(CheckpointOutdated). `host/mirror/run.py` says why two hosts never both go on.

**What is looked at meanwhile.** While the job runs, the epochs are listed every WATCH_S seconds, in a thread of the
mirror process that waits for no upload. So a host that was replaced learns of it although it uploads nothing, and a
store that does not answer is known as such (`MirrorStatus.silent_s`) long before a request of an upload gives up.

With `durable = remote` a flush is over once its checkpoint is in the store. The core plans for that with what it is
told here (UploadsChanged): whether a checkpoint waits for the store, and how long the next upload is going to take.
While the host is about to go, or the program leaves for good, uploads are not held back, and errors are retried soon.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import PurePath

from structlog.typing import FilteringBoundLogger

from supervisor.config import ProgramConfig
from supervisor.core.program import effects, events, notice_plan
from supervisor.core.program.facts import ALIVE, ProgramFacts, State
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError, RunFenced, Wanted
from supervisor.host.mirror.settings import MirrorSettings
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.keys import run_of
from supervisor.protocol.wire import messages as worker_messages
from supervisor.runner.attempt.services import Services
from supervisor.runner.records.observers import ProgramObserver

RETRY_S = 30.0  # a store that is down for a moment is no reason to be far behind
MAX_LACKING = 1000  # of checkpoints that are remembered because the store lacks them: only the oldest is asked for
URGENT_RETRY_S = 1.0  # while somebody waits: as for a save that failed
WATCH_S = 8.0  # between two looks at the epochs: with SILENT_S, what happens there is known within 15 s
SILENT_S = 5.0  # a list takes a fraction of a second; a store that needs longer is worth a word
LOOK_TIMEOUT_S = 5.0  # how long a start on a new host waits to learn which numbers are used: else one attempt learns it


@dataclass(frozen=True, slots=True)
class MirrorRequest:
    """What is being asked of the store: `what`, in words, and the checkpoint that it is about, if there is one.

    `for_s`: for how long. `sent_bytes`, `size_bytes`: of an upload, once they are known.
    """

    what: str
    checkpoint: str | None
    for_s: float
    sent_bytes: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MirrorStatus:
    """How far the copy in the store is. `epoch`: under which this host writes; `newest_step`: of what is there.

    `waits`: the checkpoint that is not there yet; `error`: why not, or what else is wrong. `behind_s`: how long the
    oldest checkpoint has been on the disk that is newer than all in the store; 0 if there is none. `request`: what is
    being asked of the store. `silent_s`: for how long the store has not answered; 0 if it answers.
    """

    url: str
    epoch: int | None
    newest_step: int | None
    waits: str | None
    error: str | None
    behind_s: float
    request: MirrorRequest | None = None
    silent_s: float = 0.0


class JobMirror(ProgramObserver):
    """The mirror of one job. `post` takes the event that another host has taken the run over."""

    def __init__(
        self, config: ProgramConfig, services: Services, post: Callable[[events.Event], None], log: FilteringBoundLogger
    ) -> None:
        assert config.job is not None and config.job.mirror is not None
        self.error: str | None = None
        """Why the newest checkpoint is not in the store yet; None while nothing is wrong."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when a checkpoint has reached the store, or could not."""
        self.failures = 0
        """How many times an upload, or what has to come before it, has failed so far."""
        self.is_awaited = config.job.durable == "remote"
        """Whether a flush is over only once its checkpoint is in the store."""
        self.attempt = 0
        """The highest attempt in the name of a remote checkpoint."""
        run = run_of(config.name)
        self._url = f"{config.job.mirror.rstrip('/')}/{run}"
        settings = MirrorSettings(
            url=config.job.mirror,
            run=run,
            folder=config.job.checkpoint_dir,
            keep=config.job.mirror_keep,
            bytes_per_s=config.job.mirror_rate_limit,
        )
        self._client = MirrorClient(settings, services.environment, config.environment, config.user)
        self._post = post
        self._log = log
        self._epoch: int | None = None
        self._known = 0  # the highest epoch that the store was seen to have
        self._start: str | None = None  # what the epoch goes on from, or is to
        self._has_start = False  # not yet for a worker that an earlier daemon started
        self._is_anew = False  # the start gives up all that the store has beyond it
        self._may_begin = False  # an attempt has trained, or takes nothing from anybody
        self._is_held = False  # the newest epoch was this host's when the store was last asked
        self._seen: CheckpointName | None = None  # the newest that counted then, whether it may be used or not
        self._is_selecting = False
        self._starts = 0  # how many attempts have begun; what an earlier one asked says nothing about a later one
        self._asking: tuple[str, str | None, float] | None = None  # verb, checkpoint, since when
        self._watching: asyncio.Task[None] | None = None
        self._watched_at: float | None = None  # when the look was begun that has no answer yet
        self._watch_error: str | None = None
        self._remote: tuple[CheckpointName, ...] = ()  # that count, newest first, as far as known
        self._wanted: str | None = None  # the newest local checkpoint, while it is not in the store
        self._lacking: list[tuple[CheckpointName, float]] = []  # those that the store lacks, oldest first, since when
        self._has_resumed = False
        self._is_resuming = False  # it is not known yet whether an earlier daemon left something to upload
        self._is_finishing = False  # what an earlier daemon left is being uploaded
        self._task: asyncio.Task[None] | None = None
        self.is_over = False  # the program is gone for good: nothing is tried again
        self._name = config.name
        self._is_limited = config.job.mirror_rate_limit is not None
        self._durations = services.upload_durations
        self._expected_upload_s: float | None = None
        self._is_urgent = False
        self._is_running = False
        self._retry_now = asyncio.Event()
        self._reported: events.UploadsChanged | None = None

    # --- for those who look -------------------------------------------------------------------------------------------

    @property
    def status(self) -> MirrorStatus:
        """How far it is."""
        newest_step = None if self.newest is None else self.newest.step
        error = self.error if self.error is not None else self._watch_error
        return MirrorStatus(
            self._url, self._epoch, newest_step, self._wanted, error, self._behind_s, self.request, self._silent_s
        )

    @property
    def request(self) -> MirrorRequest | None:
        """What is being asked of the store, beside the look at the epochs; None if nothing is."""
        if self._asking is None:
            return None
        what, checkpoint, since = self._asking
        progress = self._client.progress if what == "uploading" else None
        sent, size = (None, None) if progress is None else (progress.sent_bytes, progress.size_bytes)
        return MirrorRequest(what, checkpoint, time.monotonic() - since, sent, size)

    @property
    def _silent_s(self) -> float:
        silent_s = 0.0 if self._watched_at is None else time.monotonic() - self._watched_at
        return silent_s if silent_s >= SILENT_S else 0.0

    async def _ask(self, what: str, checkpoint: str | None, question: messages.Question, kind: type[Wanted]) -> Wanted:
        """Raises MirrorError, RunFenced."""
        asking = self._asking = (what, checkpoint, time.monotonic())
        self._client.progress = None
        try:
            return await self._client.ask(question, kind)
        finally:
            if self._asking is asking:
                self._asking = None

    @property
    def _behind_s(self) -> float:
        return time.monotonic() - self._lacking[0][1] if self.waits and self._lacking else 0.0

    @property
    def newest(self) -> CheckpointName | None:
        """The newest checkpoint in the store; None if there is none or it is not known."""
        return self._remote[0] if self._remote else None

    @property
    def waits(self) -> bool:
        """Whether a checkpoint that is on the disk is not in the store yet, or may not be, and is going to be uploaded.

        What an attempt begins from is not, until the run is this host's.
        """
        return self._is_resuming or (self._wanted is not None and (self._epoch is not None or self._may_begin))

    def has(self, name: str) -> bool:
        """Whether the store has this checkpoint, or a newer one."""
        wanted = parse_name(name)
        return wanted is not None and self.newest is not None and self.newest >= wanted

    @property
    def names(self) -> tuple[str, ...]:
        """The checkpoints in the store that count, newest first, as far as known."""
        return tuple(map(str, self._remote))

    # --- before a launch ----------------------------------------------------------------------------------------------

    async def look(self) -> int:
        """The highest attempt that the store has: the next one here needs a higher number. Raises MirrorError."""
        question = messages.FetchRequest(self._client.next_id(), only_look=True)
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                self._learn(await self._ask("asking the mirror", None, question, messages.FetchAnswer))
        except TimeoutError:
            raise MirrorError(f"the store did not answer within {LOOK_TIMEOUT_S:g} s") from None
        return self.attempt

    def may_have_newer(self, local: str | None) -> bool:
        """Whether the store may have a newer checkpoint than the newest whole one here."""
        name = _name_of(local)
        return self._epoch is None or name is None or (self.newest is not None and self.newest > name)

    async def fetch(self, local: str | None, below: int | None, unwanted: Collection[str]) -> messages.FetchAnswer:
        """Gets the newest checkpoint of the store into the folder, if it is newer than `local` and below a step.

        Raises MirrorError.
        """
        name = _name_of(local)
        question = messages.FetchRequest(
            self._client.next_id(),
            None if name is None else str(name),
            below,
            unwanted=tuple(sorted(unwanted)),
            epoch=self._epoch or 0,
        )
        found = await self._ask("fetching from the mirror", None, question, messages.FetchAnswer)
        self._learn(found)
        for each in found.bad:
            self._log.warning("mirror.refused", checkpoint=each)
        if found.name is not None:
            self._log.info("mirror.fetched", checkpoint=found.name)
        self.error = None
        return found

    def _learn(self, found: messages.FetchAnswer) -> None:
        newest = parse_name(found.newest) if found.newest is not None else None
        self._remote = () if newest is None else (newest, *(each for each in self._remote if each < newest))
        self._known, self.attempt = max(self._known, found.epoch), max(self.attempt, found.attempt)
        self._seen, self._is_held = _name_of(found.seen), found.is_held
        if found.seen is not None:
            self._post(events.CheckpointMirrored(found.seen, self._url, found.epoch))

    def on_effect(self, effect: effects.Effect, now: float) -> None:
        """While a checkpoint is selected, it is not known yet what this host goes on from."""
        if isinstance(effect, effects.SelectCheckpoint):
            self._is_selecting = True

    def on_selected(self, path: str | None, gives_up_newer: bool = False) -> None:
        """An attempt begins from this checkpoint: what the store has beyond it is on another line.

        `gives_up_newer`: an operator has given up whatever there is beyond it.
        """
        name = _name_of(path)
        start = None if name is None else str(name)
        goes_on = not gives_up_newer and (self.newest is None or (name is not None and name >= self.newest))
        self._is_selecting = False
        self._starts += 1
        if self._epoch is None or not goes_on:
            self._may_begin = gives_up_newer or self._epoch is not None or self._is_held
            self._epoch, self._start, self._has_start, self._is_anew = None, start, True, gives_up_newer
        self._is_resuming = self._is_finishing = False
        self._wanted = start if start not in self.names else None
        self._lacking = [(name, time.monotonic())] if self._wanted is not None and name is not None else []
        self._report()
        self._work()

    # --- what an earlier daemon left ----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Takes up the upload that an earlier daemon may have left. Until it is known, a flush is not over."""
        if not (self._has_resumed or self._has_start):
            self._has_resumed = self._is_resuming = True
            self._report()
            self._work()

    async def _look_for_unfinished(self) -> None:
        """Has the newest checkpoint here uploaded, unless the store has it, or another host has left it behind."""
        question: messages.Question = messages.NewestLocalRequest(self._client.next_id())
        here = await self._client.ask(question, messages.NewestLocalAnswer)
        known = (_name_of(here.name), _name_of(self._wanted))  # what an adopted worker committed meanwhile is wanted
        local = max((each for each in known if each is not None), default=None)
        newest, may_finish = None, False
        if local is not None and self._is_resuming:
            question = messages.FetchRequest(self._client.next_id(), only_look=True)
            there = await self._ask("asking the mirror", None, question, messages.FetchAnswer)
            newest = parse_name(there.newest) if there.newest is not None else None
            may_finish = str(local) not in there.left_behind and (there.is_held or there.epoch == 0)
            local = max(local, _name_of(self._wanted) or local)
        if not self._is_resuming:
            return  # an attempt has begun meanwhile
        self._is_resuming = False
        self._remote = () if newest is None else (newest,)
        if local is not None and may_finish and (newest is None or newest < local):
            self._start, self._has_start, self._is_finishing = str(local), True, True
            self._may_begin = True
            self._wanted, self._lacking = str(local), self._lacking or [(local, time.monotonic())]
            self._log.info("mirror.resumed", checkpoint=self._wanted)
        else:
            self._wanted, self._lacking = None, []

    def _give_up_finishing(self) -> None:
        """Another host has begun an epoch since: the next start decides what follows."""
        self._is_finishing = self._has_start = False
        self._wanted, self._lacking, self._start = None, [], None

    # --- beside training ----------------------------------------------------------------------------------------------

    def on_message(self, message: worker_messages.FromWorker, now: float) -> None:
        """A commit is to be uploaded; a first step takes the run."""
        if isinstance(message, worker_messages.Progress) and self._has_start and not self._may_begin:
            self._may_begin = True
            self._report()
            self._work()
        if isinstance(message, worker_messages.Committed) and (name := parse_name(message.checkpoint)) is not None:
            if name in self._remote and not self._is_resuming:
                return  # a worker that was adopted repeats its last commit
            if not (self._has_start or self._is_resuming):
                self._start, self._has_start = message.checkpoint, True
            self._is_finishing, self._may_begin = False, True
            self._wanted = message.checkpoint
            if len(self._lacking) < MAX_LACKING:
                self._lacking.append((name, now - (message.ago_s or 0.0)))
            self._report()
            self._work()

    def on_settled(self, before: State, facts: ProgramFacts, now: float) -> None:
        """While somebody waits for an upload, nothing holds it back; while the job runs, the epochs are watched."""
        self._is_running = facts.state in ALIVE
        self._keep_watching()
        is_urgent = self.is_awaited and (facts.closing or notice_plan.host_gone_at(facts) is not None)
        if is_urgent is not self._is_urgent:
            self._is_urgent = is_urgent
            self._client.lift_limit(is_urgent)
            if is_urgent:
                self.retry_now()

    def _keep_watching(self) -> None:
        if (self._is_running or self.waits) and not self.is_over and (self._watching is None or self._watching.done()):
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        """Looks at the epochs every WATCH_S seconds, as long as there is something to look for."""
        while (self._is_running or self.waits) and not self.is_over:
            await asyncio.sleep(WATCH_S)
            starts, self._watched_at = self._starts, time.monotonic()
            question = messages.WatchRequest(self._client.next_id(), self._epoch or self._known)
            try:
                await self._client.ask(question, messages.WatchAnswer)
                self._watch_error = None
            except RunFenced as fenced:
                self._watch_error = None
                if self._is_running and starts == self._starts and not self._is_selecting:
                    self._lose_run(fenced)
            except MirrorError as error:
                self._watch_error = str(error)
            finally:
                self._watched_at = None
        self._watch_error = None

    def _lose_run(self, fenced: RunFenced) -> None:
        """Another host goes on with the run."""
        self._epoch, self._wanted, self.error = None, None, str(fenced)
        self._has_start = self._may_begin = self._is_held = self._is_resuming = self._is_finishing = False
        self._lacking = []
        self._known = 0  # the next start looks anew, and may take the run back
        self.failures += 1
        self._report()
        self._post(events.RunTakenOver(f"{fenced}; start the job here only if it is to go on here"))

    def retry_now(self) -> None:
        """Tries again what waits for its next try."""
        self._retry_now.set()

    def expect(self, upload_s: float) -> None:
        """The next upload is expected to take so long, beside those of other jobs."""
        self._expected_upload_s = upload_s
        self._report()

    def _report(self) -> None:
        """Tells the core what is new, if a flush waits for the store.

        A store that fails at present is not planned with: nobody knows how long that lasts.
        """
        news = events.UploadsChanged(self.waits, self._expected_upload_s if self.error is None else None)
        if self.is_awaited and news != self._reported:
            self._reported = news
            self._post(news)

    def _work(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work_until_done())

    async def _work_until_done(self) -> None:
        try:
            await self._upload_newest()
        finally:
            if self.is_over:
                self._client.close()
        if not self.waits:
            self.on_change()

    @property
    def _has_work(self) -> bool:
        if self._is_resuming:
            return True
        if self._epoch is None:
            return self._has_start and self._may_begin
        return self._wanted is not None

    async def _upload_newest(self) -> None:
        while self._has_work:
            starts = self._starts
            try:
                if self._is_resuming:
                    await self._look_for_unfinished()
                elif self._epoch is None:
                    await self._begin_epoch()
                elif (name := self._wanted) is not None:
                    await self._upload(name, self._epoch)
                self.error = None
                self._report()
                self.on_change()
            except RunFenced as fenced:
                if self._is_finishing:
                    self._give_up_finishing()
                    self._report()
                elif starts == self._starts and self._has_start:
                    self._lose_run(fenced)
            except MirrorError as error:
                if self.error is None:
                    self._log.warning("mirror.failed", error=str(error), retry_in_s=RETRY_S)
                if error.epoch_lost:
                    self._epoch, self._remote = None, ()
                self.error = str(error)
                self.failures += 1
                self._report()
                self.on_change()
                if self.is_over:
                    return
                await self._pause()

    async def _pause(self) -> None:
        self._retry_now.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._retry_now.wait(), URGENT_RETRY_S if self._is_urgent else RETRY_S)

    async def _begin_epoch(self) -> None:
        start, starts = self._start, self._starts
        here = max(filter(None, (_name_of(start), _name_of(self._wanted))), default=None)
        question = messages.BeginEpochRequest(
            self._client.next_id(),
            None if here is None else str(here),
            self._known,
            None if self._seen is None else str(self._seen),
            self._is_anew,
        )
        begun = await self._ask("taking the run over in the mirror", None, question, messages.EpochAnswer)
        self._known = max(self._known, begun.epoch)
        self._log.info("mirror.epoch_begun", epoch=begun.epoch, start=start, newer=begun.newer)
        if starts != self._starts:
            return  # another attempt has begun meanwhile
        self._epoch, self._is_held = begun.epoch, True
        if begun.newer is not None and (newer := _name_of(begun.newer)) is not None:
            self._remote, self._wanted, self._lacking = (newer,), None, []
            text = f"another host has uploaded step {newer.step} since this attempt began; it begins again from there"
            self._post(events.CheckpointOutdated(text))
            return
        self._remote = tuple(each for each in self._remote if here is not None and each <= here)

    async def _upload(self, name: str, epoch: int) -> None:
        loop = asyncio.get_running_loop()
        began_at, is_limited = loop.time(), self._is_limited and not self._is_urgent
        try:
            question = messages.UploadRequest(self._client.next_id(), name, epoch)
            done = await self._ask("uploading", name, question, messages.UploadAnswer)
        except MirrorError as error:
            if not error.is_gone:
                raise
            self._wanted = None if self._wanted == name else self._wanted  # retention was faster: there is a newer one
            return
        self._remote = tuple(found for each in done.remote if (found := parse_name(each)) is not None)
        self._seen = max(filter(None, (self._seen, self.newest)), default=None)
        self._wanted = None if self._wanted == name else self._wanted
        self._lacking = [each for each in self._lacking if self.newest is None or each[0] > self.newest]
        if self.newest is not None:
            self._post(events.CheckpointMirrored(str(self.newest), self._url, epoch))
        self._log.info("mirror.uploaded", checkpoint=name, size_bytes=done.size_bytes, took_s=round(done.took_s, 3))
        now = loop.time()
        self._durations.record_upload(self._name, now - began_at, now, is_limited)

    def finish(self) -> None:
        """The program is gone for good: what is being uploaded may end, and nothing is tried again."""
        self.is_over = True
        if self._watching is not None:
            self._watching.cancel()
        if self._task is None or self._task.done():
            self._client.close()
        self._retry_now.set()
        self.on_change()

    def close(self) -> None:
        """Ends the process; the next daemon goes on."""
        for task in (self._task, self._watching):
            if task is not None:
                task.cancel()
        self._client.close()


def _name_of(path: str | None) -> CheckpointName | None:
    """The name of a checkpoint of ours; None for those of other programs."""
    return None if path is None else parse_name(PurePath(path).name)
