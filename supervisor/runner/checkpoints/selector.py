"""Selects the checkpoint that an attempt begins from, in the job's directory, in memory, and in the mirror."""

from collections.abc import Coroutine
from dataclasses import replace
from pathlib import PurePath

from supervisor.config import JobConfig
from supervisor.core.failures.storage import is_hosts_fault
from supervisor.core.gang.divergence import restore_below
from supervisor.core.program import effects, events
from supervisor.host.checkpoint_calls import Order
from supervisor.protocol.checkpoints.account import known_mount
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint, Selection
from supervisor.protocol.damage import UnreadableCheckpoint
from supervisor.protocol.layout import parse_name
from supervisor.protocol.tensorbundle import crc32c
from supervisor.runner.attempt.services import ProgramServices
from supervisor.runner.checkpoints.local_selection import LocalSelection
from supervisor.runner.checkpoints.mirror_selection import MirrorSelection
from supervisor.runner.checkpoints.storage import CheckpointStorage
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.mirror.job_mirror import JobMirror
from supervisor.runner.mirror.node_mirror import NodeMirror

_NONE_OLDER = (
    "it is suspect, or training diverged after it, and no older one is whole; to have more to go back to, raise "
    "checkpoint_keep"
)
DECIDED_WITHIN_S = 10.0  # after that, the ledger does not work, which the log says; a start does not depend on it


class CheckpointSelector:
    """The checkpoint directory of one job.

    `memory`: what workers that are gone left in memory, which has to be on the disk before anything is selected.
    `mirror`: its copy in an object store, which may have a newer checkpoint. `node_mirror`: instead of all that, on the
    other nodes of a gang that have folders of their own: they fetch what the chief's daemon has selected.
    """

    __slots__ = (
        "_job",
        "_local",
        "_log",
        "_memory",
        "_mirror",
        "_node_mirror",
        "_order",
        "_parts",
        "_post",
        "_services",
        "_storage",
    )

    def __init__(
        self,
        program: ProgramServices,
        job: JobConfig,
        memory: MemoryHolder,
        mirror: JobMirror | None = None,
        node_mirror: NodeMirror | None = None,
    ) -> None:
        self._memory = memory
        self._node_mirror = node_mirror
        self._job = job
        self._services = program.services
        self._post = program.post
        self._log = program.log
        self._storage = CheckpointStorage(program, job)
        self._local = LocalSelection(program, job)
        self._mirror = self._parts = None
        if mirror is not None:
            self._mirror = MirrorSelection(program, job, mirror, self._local, self._storage)
            self._parts = mirror.parts
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
                await self._storage.look(effect, self._find_store_error if self._job.mirror is not None else None)
            case effects.QuarantineCheckpoints():
                await self._storage.quarantine(effect)

    async def _find_store_error(self) -> str | None:
        """Why the job's mirror can't be asked; None if it can be. Only the chief's node of a gang asks it."""
        return None if self._mirror is None else await self._mirror.find_store_error()

    def withdraw_order(self) -> None:
        """What an operator chose is not to be carried out any more."""
        self._order.withdraw()
        self._order = Order()

    async def select(self, effect: effects.SelectCheckpoint, order: Order | None = None) -> None:
        """Posts the newest whole checkpoint, or why there is nothing to begin from."""
        selected: events.CheckpointSelected | events.SelectionFailed | None
        try:
            effect = self._limited_by_gang(effect)
            if effect.begin_at is not None or effect.restore_below_step is not None:
                # first, so that a later daemon knows why checkpoints were given up
                await self._services.ledger.until_written(DECIDED_WITHIN_S)
            if self._node_mirror is not None:
                selected = await self._node_mirror.select(effect.attempt)
            else:
                selected = await self._select_beside_memory(effect)
            if selected is None:
                await self._memory.settle()
                newest = self._memory.pop_salvaged()
                if newest is not None and (effect.newest is None or newest.step >= effect.newest.step):
                    mount = known_mount(newest.mount, newest.directory, effect.newest)
                    effect = replace(effect, newest=replace(newest, mount=mount))
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

    async def _select_beside_memory(self, effect: effects.SelectCheckpoint) -> events.CheckpointSelected | None:
        """The newest checkpoint on the disk, with what is in memory, for a worker that can restore that and waits.

        None if that is on the disk first, and wherever more is to be decided than which of the two is newer.
        """
        decided = effect.begin_at is not None or effect.restore_below_step is not None or effect.avoid or effect.unfit
        if (
            decided
            or effect.is_memory_short
            or self._mirror is not None
            or not await self._memory.until_restorable(effect.attempt)
        ):
            return None
        try:
            here = await self._local.select(effect)
        except NoValidCheckpoint as error:
            self._storage.record_refused(effect.attempt, error.rejected)
            return None  # with what comes of the memory there may be one
        except OSError:
            return None  # it is tried again
        self._storage.record_refused(effect.attempt, here.rejected)
        if (
            self._local.own_path(here) is None
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
        try:
            if effect.begin_at is not None:
                moved = await self._set_aside_newer(effect, effect.begin_at, order)
                self._log.warning("checkpoints.abandoned", attempt=attempt, directory=str(directory), moved=len(moved))
                if moved:
                    self._post(events.CheckpointsSetAside(attempt, effect.begin_at))
            if self._mirror is not None:
                effect = await self._mirror.limited(effect)
            selection = await self._select_newest(effect)
            if (
                self._mirror is not None
                and not isinstance(selection, events.SelectionFailed)
                and self._is_to_be_passed_over(effect, selection)
                and await self._mirror.fetch_older(effect)
            ):
                self._storage.record_refused(attempt, selection.rejected)
                selection = await self._select_newest(effect)
            if isinstance(selection, events.SelectionFailed):
                return selection
            if self._parts is not None and (refusal := await self._parts.refuse(attempt, selection.path)) is not None:
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

    async def _select_newest(self, effect: effects.SelectCheckpoint) -> Selection | events.SelectionFailed:
        """The newest whole checkpoint, after what training has diverged from is given up. Raises as `_local.select`."""
        given_up, below = await self._roll_back(effect), effect.restore_below_step
        if self._mirror is None or effect.begin_at is not None:
            return await self._local.select(effect)
        selection = await self._mirror.select(effect)
        is_older = isinstance(selection, Selection) and below is not None and (selection.step or 0) < below
        if is_older and not given_up:
            await self._roll_back(effect)  # an older one is here only now, where the store alone had any
        return selection

    async def _roll_back(self, effect: effects.SelectCheckpoint) -> bool:
        """Gives up what training has diverged from, if it has and an older one is here; whether anything here was."""
        if effect.restore_below_step is None or not self._services.is_chief:
            return False
        given_up = await self._local.roll_back(effect, effect.restore_below_step)
        self._storage.record_refused(effect.attempt, given_up)
        return bool(given_up)

    def _is_to_be_passed_over(self, effect: effects.SelectCheckpoint, selection: Selection) -> bool:
        """Whether what was selected is one of the job's that it was not to begin from: there is no other one here.

        What a later attempt than the one in which training diverged has saved is not given up.
        """
        path, below, diverged = self._local.own_path(selection), effect.restore_below_step, effect.diverged_attempt
        name = None if path is None else parse_name(PurePath(path).name)
        if name is None or effect.begin_at is not None or not self._services.is_chief:
            return False
        has_diverged = below is not None and name.step >= below and (diverged is None or name.attempt <= diverged)
        return has_diverged or str(name) in effect.avoid | dict(effect.unfit).keys()

    async def _set_aside_newer(self, effect: effects.SelectCheckpoint, step: int, order: Order) -> tuple[str, ...]:
        """Moves what is newer than the step that an operator chose aside; fetches that step if only the mirror has it.

        Raises NoValidCheckpoint and OSError.
        """
        try:
            return await self._local.begin_at(effect, order)
        except NoValidCheckpoint:
            if self._mirror is None or not step:
                raise
            last_attempt = await self._mirror.fetch_step(step)
            return await self._local.begin_at(effect, order, last_attempt)

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
        if self._is_to_be_passed_over(effect, selection):
            self._log.warning("checkpoint.not_avoided", attempt=attempt, chosen=path, why=_NONE_OLDER)
        elif effect.avoid:
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
