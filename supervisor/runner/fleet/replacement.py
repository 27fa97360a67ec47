"""Takes one program from the section under which it is in use to the one that is configured now."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from supervisor.config import ProgramConfig
from supervisor.core.listeners import event_types
from supervisor.core.program.facts import ALIVE
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.runner.attempt.adopting import Leftovers
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.ordering import StartTurn
from supervisor.runner.fleet.takeover import Takeover, UsedAttempts
from supervisor.runner.fleet.update_losses import keeps_memory
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

REMOVED_KEPT = 100  # programs of which measured times are kept: some set one up for each experiment

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class UpdateAction:
    """What an update did to a program: `action` is added, stopped, updated, removed or refused.

    `text`: why it was refused, or how far a job that was stopped had come and what of that is saved; null otherwise.
    `unsaved_steps`: of that job, will be trained again; `is_loss`: there are some, or nobody knows how many. `remark`:
    what could not be found out before it was changed, and will show later; null otherwise.
    """

    name: str
    action: str
    text: str | None = None
    unsaved_steps: int = 0
    is_loss: bool = False
    remark: str | None = None


class ProgramReplacement:
    """Puts runners into `runners` and takes them out. `coming`: the sections that programs are being given just now.

    `on_added` is called with every program that comes into use, before it starts, `on_state_change` whenever one of
    them changes its state.
    """

    def __init__(
        self,
        services: Services,
        runners: dict[str, Runner],
        coming: Mapping[str, ProgramConfig],
        takeover: Takeover,
        *,
        on_state_change: Callable[[], None],
        on_added: Callable[[Runner], None],
    ) -> None:
        self._services = services
        self._runners = runners
        self._coming = coming
        self._takeover = takeover
        self._on_state_change = on_state_change
        self._on_added = on_added
        self._background = BackgroundTasks(log)
        self._removed: dict[str, None] = {}  # names, in the order in which they were removed

    async def replace(
        self,
        name: str,
        config: ProgramConfig | None,
        used: UsedAttempts,
        turn: StartTurn,
        retired: Mapping[str, asyncio.Event],
    ) -> list[UpdateAction]:
        """Takes a program from its old configuration, if it had one, to its new one, if it has one.

        `retired`: by program that is in use, set once that has stopped.
        """
        old = self._runners.get(name)
        stopped, uploads = UpdateAction(name, "stopped"), False
        before = [retired[other] for other in self.users_of_directory(config) if other in retired]
        if old is not None:
            turn.give_up()  # it has to flush and stop, and may take long to
            try:
                stopped = await _retire_for_update(old, config)
            finally:
                retired[name].set()
        if before:  # a job that gets another name goes on from what it saves last under the former one
            turn.give_up()
            await asyncio.gather(*(event.wait() for event in before))
        if old is not None:
            used.recorded = max(used.recorded, old.attempt)
            if old.mirror is not None and config is not None:
                uploads = old.mirror.waits
                old.mirror.close()  # the next one goes on with it, and would lose the run to a late answer
        if config is None:
            if old is not None:
                self.forget(old)
            return [stopped, UpdateAction(name, "removed")]
        self._services.ledger.wanted.record_added(name)
        self._removed.pop(name, None)
        self._runners.pop(name, None)  # the new one is the last of them
        runner = self._runners[name] = self._successor(config, old)
        if uploads and runner.mirror is not None:
            runner.mirror.resume()
        bringing_up = self._background.start(self._bring_up(runner, used, turn))
        looked = asyncio.ensure_future(runner.takeover.until(TakeoverStage.ADOPTION_SETTLED))
        try:
            await asyncio.wait({bringing_up, looked}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            looked.cancel()
        if not runner.takeover.has_leftovers:  # they may take long to end, and other orders are not to wait for that
            await bringing_up
        return [UpdateAction(name, "added")] if old is None else [stopped, UpdateAction(name, "updated")]

    def _successor(self, config: ProgramConfig, old: Runner | None) -> Runner:
        """The runner of a section, with what it takes over from the one before, if there was one."""
        runner = Runner(config, self._services, self._on_state_change)
        if old is None:
            wanted = self._services.ledger.wanted.is_wanted(
                config.name, config.autostart
            )  # as at a start of the daemon
            runner.set_wanted(wanted)
            return runner
        runner.set_wanted(old.wanted)
        runner.requests.restarts = old.requests.restarts
        if old.memory is not None and runner.memory is not None:
            if (left := old.memory.hand_over()) is not None:
                runner.memory.take_over(left)
            old.memory.detach()
        return runner

    def users_of_directory(self, config: ProgramConfig | None) -> list[str]:
        """The other programs that save where a job is to save: in use, or about to come into use."""
        if config is None or config.job is None:
            return []
        programs = [*(runner.config for runner in self._runners.values()), *self._coming.values()]
        directory = config.job.checkpoint_dir
        users = {other.name for other in programs if other.job and other.job.checkpoint_dir == directory}
        return sorted(users - {config.name})

    async def _bring_up(self, runner: Runner, used: UsedAttempts, turn: StartTurn) -> None:
        try:
            self._on_added(runner)
            await self._takeover.bring_up(runner, Leftovers(), used, turn)
        finally:  # after an error it can be started by hand: nothing of it runs
            turn.give_up()
            runner.takeover.advance(TakeoverStage.STARTABLE)

    def forget(self, runner: Runner) -> None:
        """A program is used no more. What was measured of it serves one that is added under its name soon."""
        name, group = runner.name, runner.config.group
        del self._runners[name]
        if group not in self.groups():  # it is the last of them
            self._services.listeners.unsubscribe(group)
            self._services.listeners.publish([event_types.group_removed(group)])
        self._services.ledger.wanted.forget_program(name)
        self._services.ledger.series.forget(name)
        self._removed[name] = None
        while len(self._removed) > REMOVED_KEPT:
            oldest = next(iter(self._removed))
            del self._removed[oldest]
            self._services.save_durations.forget(oldest)
            self._services.upload_durations.forget(oldest)

    def groups(self) -> set[str]:
        """Those that are in use, or about to come into use."""
        coming = (config.group for config in self._coming.values())
        return {*(runner.config.group for runner in self._runners.values()), *coming}


def moves(runner: Runner, new: ProgramConfig | None) -> bool:
    """Whether a job goes on in another checkpoint directory with its new section."""
    before, after = runner.config.job, None if new is None else new.job
    return before is not None and after is not None and before.checkpoint_dir != after.checkpoint_dir


async def _retire_for_update(runner: Runner, new: ProgramConfig | None) -> UpdateAction:
    """Flushes and stops a program, whose section changes; what is said of that."""
    await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)
    attempt, was_alive = runner.attempt, runner.state in ALIVE
    # into another directory, checkpoints are fetched from the mirror
    await retire(runner, "update", leaves_memory=keeps_memory(runner.config, new), needs_mirror=moves(runner, new))
    progress = runner.progress_of(attempt) if was_alive else None
    if progress is None:
        return UpdateAction(runner.name, "stopped")
    text, is_loss = progress.describe_end(), not progress.is_safe
    return UpdateAction(runner.name, "stopped", text, progress.unsaved, is_loss=is_loss)
