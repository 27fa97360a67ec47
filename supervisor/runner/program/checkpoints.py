"""Selects the checkpoint that an attempt begins from, in the job's directory, in memory, and in the mirror."""

import contextlib
import errno
from collections.abc import Coroutine
from dataclasses import replace
from functools import partial

from supervisor.config import JobConfig
from supervisor.core.failures.storage import is_hosts_fault
from supervisor.core.fleet.divergence import restore_below
from supervisor.core.program import effects, events
from supervisor.host.checkpoint_calls import Order
from supervisor.host.mirror.client import MirrorError
from supervisor.host.mirror.messages import FetchAnswer
from supervisor.protocol.checkpoints.account import SeenDirectory, find_loss
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, Selection, SelectionRules
from supervisor.protocol.damage import OlderBecause, UnreadableCheckpoint
from supervisor.protocol.tensorbundle import crc32c
from supervisor.protocol.wire.launch import reads_together
from supervisor.runner.attempt.program_services import ProgramServices
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.mirror.node_mirror import NodeMirror
from supervisor.runner.program.checkpoint_storage import CheckpointStorage, with_refused


class CheckpointSelector:
    """The checkpoint directory of one job.

    `memory`: what workers that are gone left in memory, which has to be on the disk before anything is selected.
    `mirror`: its copy in an object store, which may have a newer checkpoint. `node_mirror`: instead of all that, on the
    other nodes of a gang that have folders of their own: they fetch what the chief's daemon has selected.
    """

    __slots__ = (
        "_job",
        "_log",
        "_memory",
        "_mirror",
        "_node_mirror",
        "_order",
        "_post",
        "_program",
        "_services",
        "_storage",
        "_user",
    )

    def __init__(
        self,
        program: ProgramServices,
        job: JobConfig,
        memory: MemoryHolder,
        mirror: JobMirror | None = None,
        node_mirror: NodeMirror | None = None,
    ) -> None:
        self._program = program.config.name
        self._user = program.config.user
        self._memory = memory
        self._mirror = mirror
        self._node_mirror = node_mirror
        self._job = job
        self._services = program.services
        self._post = program.post
        self._log = program.log
        self._storage = CheckpointStorage(program, job)
        self._order = Order()
        crc32c.load_library()

    def execute(
        self, effect: effects.SelectCheckpoint | effects.LookAtStorage | effects.QuarantineCheckpoints
    ) -> Coroutine[None, None, None]:
        """Does what the effect says, and posts what follows. From now on a stop withdraws an order in it."""
        return self._execute(effect, self._order)

    async def _execute(
        self, effect: effects.SelectCheckpoint | effects.LookAtStorage | effects.QuarantineCheckpoints, order: Order
    ) -> None:
        match effect:
            case effects.SelectCheckpoint():
                await self.select(effect, order)
            case effects.LookAtStorage():
                await self._storage.look(effect, has_mirror=self._job.mirror is not None)
            case effects.QuarantineCheckpoints():
                await self._storage.quarantine(effect)

    def withdraw_order(self) -> None:
        """What an operator chose is not to be carried out any more."""
        self._order.withdraw()
        self._order = Order()

    async def select(self, effect: effects.SelectCheckpoint, order: Order | None = None) -> None:
        """Posts the newest whole checkpoint, or why there is nothing to begin from."""
        selected: events.CheckpointSelected | events.SelectionFailed | None
        try:
            effect = self._limited_by_gang(effect)
            if self._node_mirror is not None:
                selected = await self._node_mirror.select(effect.attempt)
            else:
                selected = await self._select_beside_memory(effect)
            if selected is None:
                await self._memory.settle()
                newest = self._memory.pop_salvaged()
                if newest is not None and (effect.newest is None or newest.step >= effect.newest.step):
                    effect = replace(effect, newest=newest)
                selected = await self._select(effect, order or Order())
        except Exception as error:  # noqa: BLE001 - without an answer the worker would wait until it times out
            self._log.exception("internal.failed", on="select")
            selected = events.SelectionFailed(effect.attempt, f"cannot select a checkpoint: {error!r}", permanent=False)
        self._post(selected)

    def _limited_by_gang(self, effect: effects.SelectCheckpoint) -> effects.SelectCheckpoint:
        """With what any node of the gang knows of a divergence, on the chief's, which decides for all."""
        gang = self._services.gang
        if gang is None or not self._services.is_chief or effect.begin_at is not None:
            return effect
        newest = None if effect.newest is None else effect.newest.attempt
        below = restore_below(effect.restore_below_step, gang.diverged, newest)
        if below == effect.restore_below_step:
            return effect
        self._log.warning("gang.goes_back", attempt=effect.attempt, below_step=below, why="another rank diverged")
        diverged = max(effect.diverged_attempt or 0, *(seen.attempt for seen in gang.diverged))
        return replace(effect, restore_below_step=below, diverged_attempt=diverged)

    async def _limited_by_mirror(self, effect: effects.SelectCheckpoint) -> effects.SelectCheckpoint:
        """Without a divergence after which another host has gone on: what that has trained is not to be given up."""
        if self._mirror is None or effect.restore_below_step is None:
            return effect
        with contextlib.suppress(MirrorError):  # the epoch that begins later goes on from what that host has uploaded
            if await self._mirror.has_gone_on():
                words = "where a divergence had the next start begin is forgotten: another host has gone on since"
                self._log.warning("decision.outdated", attempt=effect.attempt, effect=words)
                return replace(effect, restore_below_step=None, diverged_attempt=None)
        return effect

    async def _select_beside_memory(self, effect: effects.SelectCheckpoint) -> events.CheckpointSelected | None:
        """The newest checkpoint on the disk, with what is in memory, for a worker that can restore that and waits.

        None if that is on the disk first, and wherever more is to be decided than which of the two is newer.
        """
        decided = effect.begin_at is not None or effect.restore_below_step is not None or effect.avoid or effect.unfit
        if decided or self._mirror is not None or not await self._memory.until_restorable(effect.attempt):
            return None
        try:
            here = await self._select_here(effect)
        except NoValidCheckpoint as error:
            self._storage.record_refused(effect.attempt, error.rejected)
            return None  # with what comes of the memory there may be one
        except OSError:
            return None  # it is tried again
        self._storage.record_refused(effect.attempt, here.rejected)
        if (
            self._own_path(here) is None
            or here.step is None
            or (effect.newest is not None and here.step < effect.newest.step)
        ):
            return None
        offer = self._memory.offer()
        if offer is None:
            return None
        selected = self._answer(effect, here)
        return replace(selected, memory=offer) if isinstance(selected, events.CheckpointSelected) else None

    async def _select(
        self, effect: effects.SelectCheckpoint, order: Order
    ) -> events.CheckpointSelected | events.SelectionFailed:
        directory, attempt = self._job.checkpoint_dir, effect.attempt
        store = self._services.checkpoints
        try:
            if effect.begin_at is not None:
                moved = await self._set_aside_newer(effect, order)
                self._log.warning("checkpoints.abandoned", attempt=attempt, directory=str(directory), moved=len(moved))
            effect = await self._limited_by_mirror(effect)
            await self._fetch_older(effect)
            if effect.restore_below_step is not None and self._services.is_chief:
                below, diverged = effect.restore_below_step, effect.diverged_attempt
                given_up = await store.roll_back(directory, below, self._user, _expected(effect), diverged)
                self._storage.record_refused(attempt, given_up)
            selection = await self._select_here_or_there(effect)
            if isinstance(selection, events.SelectionFailed):
                return selection
            if self._mirror is not None and self._mirror.parts is not None:
                refusal = await self._mirror.parts.refuse(attempt, selection.path)
                if refusal is not None:
                    return refusal
        except NoValidCheckpoint as error:
            self._storage.record_refused(attempt, error.rejected)
            return events.SelectionFailed(attempt, str(error), permanent=True)
        except UnreadableCheckpoint as error:
            remedy = "it is tried again by itself"
            if error.has_older:
                remedy += "; if it stays so, an older one is used. To use that at once, move this one away"
            text = f"cannot read {error.name} in {directory}: {error.strerror}; {remedy}"
            return events.SelectionFailed(
                attempt, text, permanent=False, errno=error.errno, older_readable=error.has_older
            )
        except OSError as error:
            return events.SelectionFailed(
                attempt, self._storage.explain(error), permanent=not is_hosts_fault(error.errno), errno=error.errno
            )
        self._storage.record_refused(attempt, selection.rejected)
        return self._answer(effect, selection)

    async def _fetch_older(self, effect: effects.SelectCheckpoint) -> None:
        """Where no checkpoint that was written here is on this disk: gets one that is older than those to pass over."""
        unwanted = effect.avoid | dict(effect.unfit).keys()
        if self._mirror is None or self._mirror.parts is None or not (effect.restore_below_step or unwanted):
            return
        with contextlib.suppress(MirrorError):  # what is here is selected from, and says what is wrong
            await self._mirror.fetch(None, effect.restore_below_step, unwanted)

    async def _set_aside_newer(self, effect: effects.SelectCheckpoint, order: Order) -> tuple[str, ...]:
        """Moves what is newer than the step that an operator chose aside; fetches that step if only the mirror has it.

        Raises NoValidCheckpoint and OSError.
        """
        store, directory, step = self._services.checkpoints, self._job.checkpoint_dir, effect.begin_at or 0
        is_repeated = effect.begin_since is not None and effect.begin_since < effect.attempt
        since = effect.begin_since if is_repeated else None
        begin_at = partial(store.begin_at, directory, step, since, self._user, _expected(effect), order)
        try:
            return await begin_at()
        except NoValidCheckpoint:
            if self._mirror is None or not step:
                raise
            try:
                await self._mirror.fetch(None, step + 1, ())
            except MirrorError as error:
                raise OSError(errno.EHOSTUNREACH, str(error)) from error
            return await begin_at()

    def _rules(self, effect: effects.SelectCheckpoint) -> SelectionRules:
        allowed = self._job.restore_from_jobs
        return SelectionRules(
            initial=self._job.initial_checkpoint,
            avoid=tuple(effect.avoid | dict(effect.unfit).keys()),
            jobs=None if "*" in allowed else (self._program, *allowed),
            pass_over_unreadable=effect.pass_over_unreadable,
            begin_again=f"begin anew with supervisorctl start --from-scratch {self._program}",
            expected=_expected(effect),
            reads=not self._is_proven_by_worker(),
        )

    def _is_proven_by_worker(self) -> bool:
        """Whether the worker proves what it restores, together with the others of its gang: the chief's daemon selects
        for all, and on the other nodes every byte would be read for nothing."""
        gang = self._services.gang
        if gang is None or gang.allocation.rank == 0:
            return False
        return reads_together(self._job.save_shards, gang.allocation.size)

    def _answer(
        self, effect: effects.SelectCheckpoint, selection: Selection
    ) -> events.CheckpointSelected | events.SelectionFailed:
        attempt, unfit, seen = effect.attempt, dict(effect.unfit), selection.seen
        if selection.path is not None and selection.path.name in unfit:
            remedy = "restore it with the program that wrote it, or give this one a checkpoint_dir of its own"
            text = f"{unfit[selection.path.name]}; no older checkpoint fits either; {remedy}"
            return events.SelectionFailed(attempt, text, permanent=True)
        if self._services.gang is None and seen.highest_attempt > attempt:  # it is superseded, so it could save nothing
            text = f"another host or daemon has used attempt numbers up to {seen.highest_attempt}"
            text = f"{text}; starting again with a higher one"
            return events.SelectionFailed(attempt, text, permanent=False, attempts_used=seen.highest_attempt)
        path = str(selection.path) if selection.path else None
        if (checkpoint := selection.foreign) is not None:
            facts = {"step": checkpoint.step, "step_source": checkpoint.step_source}
            self._log.info("checkpoint.foreign", attempt=attempt, checkpoint=path, **facts)
        if effect.avoid:
            self._log.warning("checkpoint.avoided", attempt=attempt, suspects=sorted(effect.avoid), chosen=path)
        self._storage.remember_remarks(seen)
        place = seen.highest_step, seen.mount, seen.passed_over
        return events.CheckpointSelected(
            attempt,
            path,
            selection.step,
            selection.data_position,
            *place,
            below_step=effect.restore_below_step,
            device=seen.device,
        )

    def _own_path(self, here: Selection) -> str | None:
        """The path of what was selected, if it is a checkpoint in the job's own directory, and ours."""
        is_own = here.path is not None and here.path.parent == self._job.checkpoint_dir and here.foreign is None
        return str(here.path) if is_own else None

    async def _select_here(self, effect: effects.SelectCheckpoint) -> Selection:
        return await self._services.checkpoints.select(self._job.checkpoint_dir, self._rules(effect), self._user)

    def _is_elsewhere(self, effect: effects.SelectCheckpoint, here: Selection) -> bool:
        """Whether checkpoints are missing because the directory's disk is not mounted: nothing is fetched to there."""
        newest, seen, directory = effect.newest, here.seen, str(self._job.checkpoint_dir)
        if newest is None or newest.directory != directory or newest.mount in (None, seen.mount):
            return False
        loss = find_loss(newest, SeenDirectory(directory, seen.highest_step, seen.mount, seen.passed_over), "", "")
        return loss is not None and loss.waits

    async def _select_here_or_there(self, effect: effects.SelectCheckpoint) -> Selection | events.SelectionFailed:
        """The newest whole checkpoint of the directory and of its mirror. Raises what `select` raises."""
        mirror = self._mirror if effect.begin_at is None else None
        while True:
            here: Selection | None = None
            invalid: NoValidCheckpoint | None = None
            try:
                here = await self._select_here(effect)
            except NoValidCheckpoint as error:
                if mirror is None:
                    raise
                invalid = error
            if here is not None and (mirror is None or self._is_elsewhere(effect, here)):
                return here
            assert mirror is not None
            answer = await self._fetch_newer(mirror, here, effect)
            if isinstance(answer, events.SelectionFailed):
                return answer
            if answer is None or not (answer.left_behind or answer.name is not None):
                if here is None:
                    assert invalid is not None
                    raise invalid
                return with_refused(here, effect, answer)
            self._storage.record_refused(
                effect.attempt, invalid.rejected if here is None and invalid is not None else ()
            )
            if not answer.left_behind:
                return with_refused(await self._select_here(effect), effect, answer)
            # what is the newest whole one here now decides what is newer in the store

    async def _fetch_newer(
        self, mirror: JobMirror, here: Selection | None, effect: effects.SelectCheckpoint
    ) -> FetchAnswer | events.SelectionFailed | None:
        """What the store has said, after what it left behind was set aside; None if it was not, or could not be, asked.

        A host with a checkpoint of this job goes on from that while the store can't be reached; one without waits for
        the store, also if there is one of another job or program to begin from. Raises OSError.
        """
        path = None if here is None else self._own_path(here)
        if not mirror.may_have_newer(path):
            return None
        unwanted = effect.avoid | dict(effect.unfit).keys()
        try:
            answer = await mirror.fetch(path, effect.restore_below_step, unwanted)
            is_decided = effect.restore_below_step is not None or unwanted
            if is_decided and path is None and answer.newest is None and not (answer.left_behind or answer.bad):
                answer = await mirror.fetch(None, None, ())  # what is given up is better than nothing
        except MirrorError as error:
            if path is None:
                text = f"{error}; there is no checkpoint of it here, and the store may have one; it is tried again"
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


def _expected(effect: effects.SelectCheckpoint) -> str | None:
    """The name of the checkpoint that should be the newest, if that is known."""
    return None if effect.newest is None else effect.newest.name
