"""What is asked of the store about one job's run, and what each answer changes in this host's hold of it.

When to ask, and what follows from an error, `job_mirror.py` decides.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from structlog.typing import FilteringBoundLogger

from supervisor.core.program import events
from supervisor.host.mirror import messages
from supervisor.host.mirror.client import MirrorClient, MirrorError
from supervisor.protocol.checkpoints.manifest import StoredFile
from supervisor.runner.attempt.gang_parts import GangParts
from supervisor.runner.mirror.asking import MirrorQuestions, MirrorRequest
from supervisor.runner.mirror.hold import RunHold, name_of
from supervisor.runner.records.uploads import UploadDurations

SILENCE_S = 30.0  # of a store, where there is a checkpoint here to go on from: its own limits add up to two minutes
LOOK_TIMEOUT_S = 5.0  # how long a start on a new host waits to learn which numbers are used: else one attempt learns it


class StoreExchange:
    """Each of its questions raises MirrorError, and RunFenced where another host has the run.

    `url`: of the run; `durations`: get how long uploads take; `post`: takes the events that follow from answers.
    """

    def __init__(
        self,
        program: str,
        url: str,
        client: MirrorClient,
        hold: RunHold,
        durations: UploadDurations,
        post: Callable[[events.Event], None],
        log: FilteringBoundLogger,
    ) -> None:
        self._program = program
        self._url = url
        self._client = client
        self._questions = MirrorQuestions(client)
        self.sends_part = False
        """Whether this node uploads files that count only once all nodes have uploaded theirs."""
        self._hold = hold
        self._durations = durations
        self._post = post
        self._log = log

    @property
    def request(self) -> MirrorRequest | None:
        """What is being asked; None if nothing is."""
        return self._questions.request

    async def look(self) -> int:
        """The highest attempt that the store has."""
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                self._learn(await self._look_only())
        except TimeoutError:
            raise MirrorError(f"the store did not answer within {LOOK_TIMEOUT_S:g} s") from None
        return self._hold.attempt

    async def has_gone_on(self) -> bool:
        """Whether another host has taken the run over since an attempt began here last, and has uploaded."""
        there = await self._look_only()
        if there.has_gone_on:
            self._hold.forget_epoch()
            self._learn(there)
        return there.has_gone_on

    async def fetch(
        self, local: str | None, below: int | None, unwanted: Collection[str], is_chosen: bool = False
    ) -> messages.FetchAnswer:
        """Gets the newest checkpoint of the store into the folder, if it is newer than `local` and below a step."""
        name = name_of(local)
        question = messages.FetchRequest(
            self._client.next_id(),
            None if name is None else str(name),
            below,
            unwanted=tuple(sorted(unwanted)),
            epoch=self._hold.epoch or 0,
            is_chosen=is_chosen,
        )
        try:
            there = await self._questions.ask(
                "fetching from the mirror",
                question,
                messages.FetchAnswer,
                silence_s=None if name is None else SILENCE_S,
            )
        except MirrorError as error:
            if error.other_run is not None:
                self._learn(await self._look_only())  # which epoch follows, should the job go on from what is here
            raise
        self._learn(there)
        for refused in there.bad:
            self._log.warning("mirror.refused", checkpoint=refused)
        if there.name is not None:
            self._log.info("mirror.fetched", checkpoint=there.name)
        return there

    async def look_for_unfinished(self) -> None:
        """Has the newest checkpoint here uploaded, unless the store has it, or another host has left it behind."""
        hold, there = self._hold, None
        here = await self._client.ask(messages.NewestLocalRequest(self._client.next_id()), messages.NewestLocalAnswer)
        known = filter(None, (name_of(here.name), name_of(hold.wanted)))  # an adopted worker may have committed since
        local = max(known, default=None)
        if local is not None and hold.is_resuming:
            there = await self._look_only()
        if not hold.is_resuming:
            return  # an attempt has begun meanwhile
        if hold.settle_resume(local, there, time.monotonic()):
            self._log.info("mirror.resumed", checkpoint=hold.wanted)

    async def begin_epoch(self) -> None:
        """Takes the run over."""
        hold = self._hold
        start, starts, here = hold.start, hold.starts, hold.newest_here
        question = messages.BeginEpochRequest(
            self._client.next_id(),
            None if here is None else str(here),
            hold.known,
            None if hold.seen is None else str(hold.seen),
            hold.is_anew,
            start is None,
        )
        begun = await self._questions.ask("taking the run over in the mirror", question, messages.EpochAnswer)
        self._log.info("mirror.epoch_begun", epoch=begun.epoch, start=start, newer=begun.newer)
        if (newer := hold.begin_epoch(begun, here, starts)) is not None:
            text = f"the mirror has step {newer.step}, which this attempt did not know of; it begins again from there"
            self._post(events.CheckpointOutdated(text))

    async def upload(self, name: str, epoch: int, is_limited: bool) -> None:
        """Uploads a checkpoint, if it is still there. `is_limited`: it is held back, so its time says less."""
        began_at = time.monotonic()
        try:
            question = messages.UploadRequest(self._client.next_id(), name, epoch)
            done = await self._questions.ask("uploading", question, messages.UploadAnswer, checkpoint=name)
        except MirrorError as error:
            if not error.is_gone:
                raise
            self._hold.drop_wanted(name)  # retention was faster: there is a newer one
            return
        if self._hold.epoch == epoch:  # else an attempt has begun from an older one, and the next epoch leaves this out
            self._record(name, epoch, done, began_at, is_limited)

    async def locate(self, name: str) -> messages.LocateAnswer:
        """Where the store has the very checkpoint that is in the folder."""
        question = messages.LocateRequest(self._client.next_id(), name)
        return await self._questions.ask("asking the mirror", question, messages.LocateAnswer)

    async def upload_parts(self, name: str, epoch: int, others: GangParts | None, is_limited: bool) -> None:
        """Has all nodes upload their files of a checkpoint, and commits it. `others`: None if this node has all.

        MirrorError says `is_gone` if that can't be done any more, also once another attempt has begun to select: what
        it goes on from is not to have a newer one beside it.
        """
        hold, starts, began_at = self._hold, self._hold.starts, time.monotonic()
        part = messages.UploadPartRequest(self._client.next_id(), name, epoch)
        own = self._upload_own(part, name)
        self.sends_part = True
        try:
            ended = await asyncio.gather(
                own, *([others.upload(name, epoch, is_limited)] if others is not None else []), return_exceptions=True
            )
        finally:
            self.sends_part = False
        if starts != hold.starts or hold.is_selecting:
            raise MirrorError(f"{name} is of an attempt that is over", is_gone=True)
        failures = [outcome for outcome in ended if isinstance(outcome, BaseException)]
        if failures:
            raise max(failures, key=lambda failure: isinstance(failure, MirrorError) and failure.is_gone)
        files = tuple(file for outcome in ended if not isinstance(outcome, BaseException) for file in outcome)
        question = messages.CommitPartsRequest(self._client.next_id(), name, epoch, files)
        done = await self._questions.ask("uploading", question, messages.UploadAnswer, checkpoint=name)
        if hold.epoch != epoch:
            raise MirrorError(f"{name} is of an attempt that is over", is_gone=True)
        self._record(name, epoch, done, began_at, is_limited)

    async def _upload_own(self, part: messages.UploadPartRequest, name: str) -> Sequence[StoredFile]:
        return (await self._questions.ask("uploading", part, messages.PartAnswer, checkpoint=name)).files

    def _record(self, name: str, epoch: int, done: messages.UploadAnswer, began_at: float, is_limited: bool) -> None:
        self._hold.add_upload(name, done.remote)
        if (newest := self._hold.newest) is not None:
            self._post(events.CheckpointMirrored(str(newest), self._url, epoch))
        self._log.info("mirror.uploaded", checkpoint=name, size_bytes=done.size_bytes, took_s=round(done.took_s, 3))
        now = time.monotonic()
        self._durations.record_upload(self._program, now - began_at, now, is_limited)

    async def _look_only(self) -> messages.FetchAnswer:
        question = messages.FetchRequest(self._client.next_id(), only_look=True)
        return await self._questions.ask("asking the mirror", question, messages.FetchAnswer)

    def _learn(self, there: messages.FetchAnswer) -> None:
        self._hold.learn(there)
        if there.standing is not None:
            self._post(events.CheckpointMirrored(there.standing, self._url, there.epoch))
