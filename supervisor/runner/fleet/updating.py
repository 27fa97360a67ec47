"""Brings the configuration last read into use, program by program, and says what that did to each."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from supervisor.config import ProgramConfig
from supervisor.config.load import start_order
from supervisor.core.listeners import event_types
from supervisor.core.program.facts import ALIVE
from supervisor.host.background_tasks import BackgroundTasks
from supervisor.runner.attempt.adopting import Leftovers
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet import takeover
from supervisor.runner.fleet.configuration import ConfigurationReader
from supervisor.runner.fleet.ordering import StartTurn, StartTurns
from supervisor.runner.fleet.takeover import Takeover, UsedAttempts
from supervisor.runner.fleet.under_way import ChangesUnderWay
from supervisor.runner.fleet.update_losses import Foreseen, foresee, keeps_memory, left_in_memory
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


class StepsInMemory(Exception):
    """A program can't be removed, as steps of a job that no disk has would be lost; the text says what to do."""


class Updating:
    """Changes which programs are in use (`runners`), and their configuration; each of them by one order at a time.

    `configuration`: as it was last read. `on_added` is called with every program that comes into use, before it starts,
    `on_state_change` whenever one of them changes its state.
    `adoption_settled`: set once all are taken up; before, one that came into use would be started beside a worker that
    an earlier daemon left.
    """

    def __init__(
        self,
        configuration: ConfigurationReader,
        services: Services,
        runners: dict[str, Runner],
        takeover: Takeover,
        adoption_settled: asyncio.Event,
        *,
        on_state_change: Callable[[], None],
        on_added: Callable[[Runner], None],
    ) -> None:
        self._configuration = configuration
        self._services = services
        self._runners = runners
        self._takeover = takeover
        self._adoption_settled = adoption_settled
        self._on_state_change = on_state_change
        self._on_added = on_added
        self._background = BackgroundTasks(log)
        self._under_way = ChangesUnderWay()
        self._removed: dict[str, None] = {}  # names, in the order in which they were removed

    async def update(
        self, names: Iterable[str] | None = None, *, discard: bool = False, waits: bool = False
    ) -> list[UpdateAction]:
        """Makes the programs what the configuration last read says, side by side, touching only what differs.

        `names` limits it to some. Gives what was done, programs by name. New ones start, and old ones stop, in
        the order of their priority. A program that was stopped by its operator is changed and stays stopped. A job that
        would lose steps, or a program that runs and could not be started again, is left as it is (refused), unless
        `discard`; and so is one that another order is changing, unless it `waits` for that, and one that would save
        where another job does. One of which an earlier daemon's processes are still to end starts later.
        """
        await self._adoption_settled.wait()
        if waits:
            await self._under_way.until_free()
        configured, changes = self._configuration.programs, self._configuration.changes()
        differing = {*changes.added, *changes.changed, *changes.removed}
        chosen = sorted(differing if names is None else differing & set(names))
        taken = {name: self._under_way.refusal(name) for name in chosen if name in self._under_way}
        free = [name for name in chosen if name not in taken]
        before = self._groups()
        with self._under_way.change({name: configured.get(name) for name in free}) as let_go:
            actions = await self._apply(free, configured, before, discard, let_go)
        actions |= {name: [UpdateAction(name, "refused", why)] for name, why in taken.items()}
        return [action for name in chosen for action in actions[name]]

    async def _apply(
        self,
        chosen: list[str],
        configured: Mapping[str, ProgramConfig],
        before: set[str],
        discard: bool,
        let_go: Callable[[Iterable[str]], None],
    ) -> dict[str, list[UpdateAction]]:
        """Gives these programs, which no other order changes, the sections that are configured. What that did, by name.

        `before`: the groups that were in use; `let_go`: called with what stays as it is.
        """
        foreseen = Foreseen() if discard else await self.foresee(chosen)
        refused = dict(foreseen.losses)
        refused |= self._find_shared([name for name in chosen if name not in refused], configured)
        for name, why in refused.items():
            if name in self._runners:
                self._runners[name].not_applied = why
            log.error("configuration.not_applied", program=name, why=why)
        let_go(refused)
        actions = {name: [UpdateAction(name, "refused", why)] for name, why in refused.items()}
        applied = [name for name in chosen if name not in refused]
        used = await asyncio.to_thread(takeover.used_attempts, self._services)
        begin = {configured[name].group for name in applied if name in configured} - before
        self._services.listeners.publish([event_types.group_added(group) for group in sorted(begin)])
        in_order = sorted(applied, key=lambda name: start_order(configured.get(name) or self._runners[name].config))
        turns = StartTurns(len(in_order))
        retired = {name: asyncio.Event() for name in applied if name in self._runners}
        renewals = {
            name: self._replace(name, configured.get(name), used[name], turn, retired)
            for name, turn in zip(in_order, turns, strict=True)
        }
        stops_first = list(reversed(renewals))
        done = await turns.run_all(renewals[name] for name in stops_first)
        for name, last in zip(stops_first, done, strict=True):
            actions[name] = [*last[:-1], replace(last[-1], remark=foreseen.remarks.get(name))]
        return actions

    def _find_shared(self, chosen: list[str], configured: Mapping[str, ProgramConfig]) -> dict[str, str]:
        """By program that is to be changed, why not: another one saves where it is to save, and goes on.

        As that one may wait for a third, and so on, until none is left that does.
        """
        found: dict[str, str] = {}
        while True:
            changed = [name for name in chosen if name not in found]
            sharing = {
                name: other
                for name in changed
                for other in self._users_of_directory(configured.get(name))
                if other not in changed
            }
            if not sharing:
                return found
            for name, other in sharing.items():
                found[name] = (
                    f"cannot apply the section of {name}: {other} has its checkpoint_dir as long as its own section is "
                    f"not applied, and two jobs in one folder would restore and delete each other's checkpoints; "
                    f"run update {other} {name} once nothing stands in the way of {other}"
                )

    async def foresee(self, names: Iterable[str], *, by_next_daemon: bool = False) -> Foreseen:
        """What the configuration last read would do to programs: lose steps, or end them for good.

        `by_next_daemon`: it is applied nevertheless, after a reload.
        """
        runners = [self._runners[name] for name in names if name in self._runners]
        return await foresee(runners, self._configuration.programs, self._services, by_next_daemon=by_next_daemon)

    async def remove(self, names: Iterable[str], *, discard: bool = False) -> str | None:
        """Takes programs out of use until they are added again, also after a restart of the daemon.

        If one of them runs, waits to be started again or is being changed, nothing is done and its name is given.
        Raises StepsInMemory, unless they are to be discarded.
        """
        runners = [self._runners[name] for name in names if name in self._runners]
        if (taken := next((runner.name for runner in runners if runner.name in self._under_way), None)) is not None:
            return taken
        with self._under_way.change({runner.name: None for runner in runners}):
            return await self._remove(runners, discard)

    async def _remove(self, runners: list[Runner], discard: bool) -> str | None:
        for runner in runners:
            await runner.takeover.until(TakeoverStage.STARTABLE)
        if (running := _find_running(runners)) is not None:
            return running
        left = {} if discard else {runner.name: await left_in_memory(runner) for runner in runners}
        if (running := _find_running(runners)) is not None:  # meanwhile
            return running
        for name, text in left.items():
            if text is not None:
                remedy = f"let the disk of its checkpoint_dir be written, or run remove --discard {name}"
                raise StepsInMemory(f"cannot remove {name}: {text}; {remedy}")
        # a mirror works on without a worker: it would get in the way of the program once that is added again
        await asyncio.gather(*(retire(runner, "removed") for runner in runners))
        for runner in runners:
            self._forget(runner)
            self._services.ledger.wanted.record_removed(runner.name)
        return None

    async def _replace(
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
        before = [retired[other] for other in self._users_of_directory(config) if other in retired]
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
                self._forget(old)
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

    def _users_of_directory(self, config: ProgramConfig | None) -> list[str]:
        """The other programs that save where a job is to save: in use, or about to come into use."""
        if config is None or config.job is None:
            return []
        programs = [*(runner.config for runner in self._runners.values()), *self._under_way.coming.values()]
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

    def _forget(self, runner: Runner) -> None:
        """A program is used no more. What was measured of it serves one that is added under its name soon."""
        name, group = runner.name, runner.config.group
        del self._runners[name]
        if group not in self._groups():  # it is the last of them
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

    def _groups(self) -> set[str]:
        """Those that are in use, or about to come into use."""
        coming = (config.group for config in self._under_way.coming.values())
        return {*(runner.config.group for runner in self._runners.values()), *coming}


def _find_running(runners: Iterable[Runner]) -> str | None:
    """The first of them that runs or waits to be started again."""
    for runner in runners:
        if not runner.is_down or runner.waits_for is not None:
            return runner.name
    return None


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
