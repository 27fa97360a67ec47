"""The checkpoint directory of one job, as a selection reads and changes it. The reading is done by the host."""

from supervisor.config import JobConfig
from supervisor.core.program import effects
from supervisor.host.checkpoint_calls import Order
from supervisor.protocol.checkpoints.selection import Selection, SelectionRules
from supervisor.protocol.damage import RejectedCheckpoint
from supervisor.protocol.mirror.keys import run_of, url_of_run
from supervisor.protocol.wire.launch import reads_together
from supervisor.runner.attempt.services import ProgramServices


class LocalSelection:
    """Selects in the directory of one job, on this host. Every method that waits raises OSError."""

    __slots__ = ("_job", "_program", "_services", "_user")

    def __init__(self, program: ProgramServices, job: JobConfig) -> None:
        self._program = program.config.name
        self._user = program.config.user
        self._services = program.services
        self._job = job

    async def select(self, effect: effects.SelectCheckpoint) -> Selection:
        """The newest whole checkpoint that the job may restore. Raises NoValidCheckpoint and UnreadableCheckpoint."""
        return await self._services.checkpoints.select(self._job.checkpoint_dir, self._rules(effect), self._user)

    async def begin_at(self, effect: effects.SelectCheckpoint, order: Order, last_attempt: int = 0) -> tuple[str, ...]:
        """Moves what is newer than the step that an operator chose aside. Raises NoValidCheckpoint.

        `last_attempt`: of which the mirror has a checkpoint, if that is known.
        """
        is_repeated = effect.begin_since is not None and effect.begin_since < effect.attempt
        since = effect.begin_since if is_repeated else None
        directory, step = self._job.checkpoint_dir, effect.begin_at or 0
        mirror = None if self._job.mirror is None else url_of_run(self._job.mirror, run_of(self._program))
        return await self._services.checkpoints.begin_at(
            directory,
            step,
            since,
            self._user,
            _expected(effect),
            order,
            mirror,
            max(effect.begin_since or 0, 1 + last_attempt),
        )

    async def roll_back(self, effect: effects.SelectCheckpoint, below_step: int) -> tuple[RejectedCheckpoint, ...]:
        """Gives up what is at a step or beyond, as training has diverged there; says what that was."""
        store, directory = self._services.checkpoints, self._job.checkpoint_dir
        return await store.roll_back(directory, below_step, self._user, _expected(effect), effect.diverged_attempt)

    def own_path(self, here: Selection) -> str | None:
        """The path of what was selected, if it is a checkpoint in the job's own directory, and ours."""
        is_own = here.path is not None and here.path.parent == self._job.checkpoint_dir and here.foreign is None
        return str(here.path) if is_own else None

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


def _expected(effect: effects.SelectCheckpoint) -> str | None:
    """The name of the checkpoint that should be the newest, if that is known."""
    return None if effect.newest is None else effect.newest.name
