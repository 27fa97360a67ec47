"""Selects between the job's directory and its mirror, which may have a newer checkpoint."""

import contextlib
import errno
from dataclasses import replace

from supervisor.config import JobConfig
from supervisor.core.program import effects, events
from supervisor.host.mirror.client import MirrorError
from supervisor.host.mirror.messages import FetchAnswer
from supervisor.protocol.checkpoints.account import SeenDirectory, find_passed_over, is_unmounted
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, Selection
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.layout import parse_name
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.checkpoints.local_selection import LocalSelection
from supervisor.runner.checkpoints.storage import CheckpointStorage
from supervisor.runner.mirror.job_mirror import JobMirror


class MirrorSelection:
    """`mirror`: the copy of the job's checkpoints in an object store; `local`, `storage`: its directory here."""

    __slots__ = ("_job", "_local", "_log", "_mirror", "_program", "_services", "_storage", "_user")

    def __init__(
        self,
        program: ProgramServices,
        job: JobConfig,
        mirror: JobMirror,
        local: LocalSelection,
        storage: CheckpointStorage,
    ) -> None:
        self._program = program.config.name
        self._user = program.config.user
        self._services = program.services
        self._log = program.log
        self._job = job
        self._mirror = mirror
        self._local = local
        self._storage = storage

    async def select(self, effect: effects.SelectCheckpoint) -> Selection | events.SelectionFailed:
        """The newest whole checkpoint of the directory and of its mirror. Raises what `LocalSelection.select` does."""
        while True:
            here: Selection | None = None
            invalid: NoValidCheckpoint | None = None
            try:
                here = await self._local.select(effect)
            except NoValidCheckpoint as error:
                invalid = error
            if here is not None and self._is_elsewhere(effect, here):
                return here
            answer = await self._fetch_newer(here, effect)
            if isinstance(answer, events.SelectionFailed):
                return answer
            if answer is None or not (answer.left_behind or answer.name is not None):
                if here is None:
                    assert invalid is not None
                    raise invalid
                return _with_refused(here, effect, answer)
            if invalid is not None:
                self._storage.record_refused(effect.attempt, invalid.rejected)
            if not answer.left_behind:
                return _with_refused(await self._local.select(effect), effect, answer)
            # what is the newest whole one here now decides what is newer in the store

    async def limited(self, effect: effects.SelectCheckpoint) -> effects.SelectCheckpoint:
        """Without a divergence after which another host has gone on: what that has trained is not to be given up."""
        if effect.restore_below_step is None:
            return effect
        with contextlib.suppress(MirrorError):  # the epoch that begins later goes on from what that host has uploaded
            if await self._mirror.has_gone_on():
                words = "where a divergence had the next start begin is forgotten: another host has gone on since"
                self._log.warning("decision.outdated", attempt=effect.attempt, effect=words)
                return replace(effect, restore_below_step=None, diverged_attempt=None)
        return effect

    async def fetch_older(self, effect: effects.SelectCheckpoint) -> bool:
        """Where none on this disk is older than those to pass over, or whole: gets one; False if there is none.

        A host that was replaced has fetched the newest alone, `checkpoint_make_room` has deleted the others, and where
        nodes have folders of their own, none is written there whole.
        """
        unwanted = effect.avoid | dict(effect.unfit).keys()
        try:
            answer = await self._mirror.fetch(None, effect.restore_below_step, unwanted)
        except MirrorError as error:
            words = "the store may have an older checkpoint, which would be used instead"
            self._log.warning("mirror.unreachable", attempt=effect.attempt, error=str(error), effect=words)
            return False
        return answer.name is not None

    async def fetch_step(self, step: int) -> int:
        """Fetches what an operator chose, if only the mirror has it; says of which attempt its last one is.

        Raises OSError.
        """
        try:
            return (await self._mirror.fetch(None, step + 1, (), is_chosen=True)).attempt
        except MirrorError as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from error

    async def find_store_error(self) -> str | None:
        """Why the store can't be asked for what is missing here, with what follows; None if it answers."""
        try:
            await self._mirror.look()
        except MirrorError as error:
            return _nothing_here(error)
        return None

    def _is_elsewhere(self, effect: effects.SelectCheckpoint, here: Selection) -> bool:
        newest, seen, directory = effect.newest, here.seen, str(self._job.checkpoint_dir)
        place = SeenDirectory(directory, seen.highest_step, seen.mount, seen.passed_over)
        return newest is not None and is_unmounted(newest, place)

    async def _fetch_newer(
        self, here: Selection | None, effect: effects.SelectCheckpoint
    ) -> FetchAnswer | events.SelectionFailed | None:
        """What the store has said, after what it left behind was set aside; None if it was not, or could not be, asked.

        A host with a checkpoint of this job goes on from that while the store can't be reached; one without waits for
        the store, also if there is one of another job or program to begin from. Raises OSError.
        """
        path = None if here is None else self._local.own_path(here)
        if not self._mirror.may_have_newer(path):
            return None
        unwanted = effect.avoid | dict(effect.unfit).keys()
        try:
            answer = await self._mirror.fetch(path, effect.restore_below_step, unwanted)
            is_decided = effect.restore_below_step is not None or unwanted
            if is_decided and path is None and answer.newest is None and not (answer.left_behind or answer.bad):
                answer = await self._mirror.fetch(None, None, ())  # what is given up is better than nothing
        except MirrorError as error:
            if error.other_run is not None:
                steps, start, name = error.other_run, "supervisorctl start --from-step", self._program
                away = f", once what is in {self._job.checkpoint_dir} is moved away," if steps.is_here_too else ""
                remedy = f"or go on from the mirror's{away} with {start} {steps.there} {name}"
                remedy = f"give this job a mirror of its own; {remedy}"
                remedy = f"{remedy}, or without what it has with {start} {steps.here} {name}"
                return events.SelectionFailed(effect.attempt, f"{error}; {remedy}", permanent=True)
            if path is None:
                text = _nothing_here(error)
                return events.SelectionFailed(effect.attempt, text, permanent=False, errno=errno.EHOSTUNREACH)
            self._log.warning("mirror.unreachable", attempt=effect.attempt, error=str(error), begins_from=path)
            return None
        if answer.left_behind:
            why = "another host has gone on with this run from an earlier checkpoint"
            reasons, because = tuple((name, why) for name in answer.left_behind), OlderBecause.LEFT_BEHIND
            store = self._services.checkpoints
            refused = await store.quarantine(self._job.checkpoint_dir, reasons, because, self._user)
            self._storage.record_refused(effect.attempt, refused)
            return answer
        if answer.attempt >= effect.attempt:
            text = f"another host has used attempt numbers up to {answer.attempt}; starting again with a higher one"
            return events.SelectionFailed(effect.attempt, text, permanent=False, attempts_used=answer.attempt)
        if path is None and answer.name is None and answer.bad:
            text = f"the mirror has checkpoints, and none is whole: {'; '.join(answer.bad)}"
            remedy = f"begin anew with supervisorctl start --from-scratch {self._program}"
            return events.SelectionFailed(effect.attempt, f"{text}; {remedy}", permanent=True)
        return answer


def _with_refused(selection: Selection, effect: effects.SelectCheckpoint, answer: FetchAnswer | None) -> Selection:
    """The selection, with the newest checkpoint that is known as passed over, if the store's is not whole."""
    if answer is None or not answer.bad or selection.seen.passed_over is not None:
        return selection
    told = (None if effect.newest is None else effect.newest.name, answer.seen)
    known = [name for text in told if text is not None and (name := parse_name(text)) is not None]
    if not known:
        return selection
    refused = (text.partition(": ") for text in answer.bad)
    rejected = [RejectedCheckpoint(place.rpartition("/")[2], f"in the mirror: {why}") for place, _, why in refused]
    passed_over = find_passed_over(max(known), rejected)
    return replace(selection, seen=replace(selection.seen, passed_over=passed_over))


def _nothing_here(error: MirrorError) -> str:
    return f"{error}; there is no checkpoint of it here, and the store may have one; it is tried again"
