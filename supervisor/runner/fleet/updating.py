"""Brings the configuration last read into use, program by program, and says what that did to each."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

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
from supervisor.runner.fleet.update_losses import find_losses, keeps_memory, left_in_memory
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

REMOVED_KEPT = 100  # programs of which measured times are kept: some set one up for each experiment

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class UpdateAction:
    """What an update did to a program: `action` is added, stopped, updated, removed or refused.

    `text`: why it was refused, or how far a job that was stopped had come and what of that is saved; null otherwise.
    `unsaved_steps`: of that job, will be trained again; `is_loss`: there are some, or nobody knows how many.
    """

    name: str
    action: str
    text: str | None = None
    unsaved_steps: int = 0
    is_loss: bool = False


class StepsInMemory(Exception):
    """A program can't be removed, as steps of a job that no disk has would be lost; the text says what to do."""


class Updating:
    """Changes which programs are in use (`runners`), and their configuration; one change after another.

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
        self._lock = asyncio.Lock()
        self._removed: dict[str, None] = {}  # names, in the order in which they were removed

    async def update(self, names: Iterable[str] | None = None, *, discard: bool = False) -> list[UpdateAction]:
        """Makes the programs what the configuration last read says, side by side, touching only what differs.

        `names` limits it to some. Gives what was done, programs by name. New ones start, and old ones stop, in
        the order of their priority. A program that was stopped by its operator is changed and stays stopped. A job that
        would lose steps, or a program that runs and could not be started again, is left as it is (refused), unless
        `discard`. One of which an earlier daemon's processes are still to end starts later.
        """
        await self._adoption_settled.wait()
        async with self._lock:
            configured, changes = self._configuration.programs, self._configuration.changes()
            before = self._groups()
            differing = {*changes.added, *changes.changed, *changes.removed}
            chosen = sorted(differing if names is None else differing & set(names))
            refused = {} if discard else await self.find_losses(chosen)
            refused |= self._find_held_directories(chosen, refused)
            for name, why in refused.items():
                if name in self._runners:
                    self._runners[name].not_applied = why
                log.error("configuration.not_applied", program=name, why=why)
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
            self._publish_removed_groups(before)
            actions |= dict(zip(stops_first, done, strict=True))
            return [action for name in chosen for action in actions[name]]

    def _find_held_directories(self, chosen: Iterable[str], refused: Mapping[str, str]) -> dict[str, str]:
        """By job, why it can't have the checkpoint_dir of its section: another job has that, and stays as it is.

        Its worker would find the folder locked, again and again, until it is given up.
        """
        configured, found = self._configuration.programs, dict[str, str]()
        changing = set(chosen) - set(refused)
        while True:
            held = {
                name: holder
                for name in changing & configured.keys()
                for holder in self._users_of_directory(configured[name])
                if holder != name
                and holder not in changing
                and (holder in refused or self._runners[holder].state in ALIVE)
            }
            if not held:
                return found
            found |= {
                name: f"cannot apply the section of {name}: {holder}, which is left as it is, has its checkpoint_dir; "
                f"update again once {holder} is stopped, or its own section is applied"
                for name, holder in held.items()
            }
            changing -= held.keys()

    async def find_losses(self, names: Iterable[str], *, by_next_daemon: bool = False) -> dict[str, str]:
        """By program, why the configuration last read would lose steps, or end it for good, and what follows.

        `by_next_daemon`: it is applied nevertheless, after a reload.
        """
        runners = [self._runners[name] for name in names if name in self._runners]
        return await find_losses(runners, self._configuration.programs, self._services, by_next_daemon=by_next_daemon)

    async def remove(self, names: Iterable[str], *, discard: bool = False) -> str | None:
        """Takes programs out of use until they are added again, also after a restart of the daemon.

        If one of them runs or waits to be started again, nothing is done and its name is given. Raises StepsInMemory,
        unless they are to be discarded.
        """
        async with self._lock:
            before = self._groups()
            runners = [self._runners[name] for name in names if name in self._runners]
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
                del self._runners[runner.name]
                self._forget(runner.name)
                self._services.ledger.wanted.record_removed(runner.name)
            self._publish_removed_groups(before)
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
        before = [retired[other] for other in self._users_of_directory(config) if other in retired and other != name]
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
            del self._runners[name]
        self._services.ledger.wanted.record_added(name)
        self._removed.pop(name, None)
        if config is None:
            self._forget(name)
            return [stopped, UpdateAction(name, "removed")]
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
        """The programs in use that save where a job is to save."""
        if config is None or config.job is None:
            return []
        jobs = {name: runner.config.job for name, runner in self._runners.items()}
        return [name for name, job in jobs.items() if job and job.checkpoint_dir == config.job.checkpoint_dir]

    async def _bring_up(self, runner: Runner, used: UsedAttempts, turn: StartTurn) -> None:
        try:
            self._on_added(runner)
            await self._takeover.bring_up(runner, Leftovers(), used, turn)
        finally:  # after an error it can be started by hand: nothing of it runs
            turn.give_up()
            runner.takeover.advance(TakeoverStage.STARTABLE)

    def _forget(self, name: str) -> None:
        """A program is used no more. What was measured of it serves one that is added under its name soon."""
        self._services.ledger.wanted.forget_program(name)
        self._services.ledger.series.forget(name)
        self._removed[name] = None
        while len(self._removed) > REMOVED_KEPT:
            oldest = next(iter(self._removed))
            del self._removed[oldest]
            self._services.save_durations.forget(oldest)
            self._services.upload_durations.forget(oldest)

    def _groups(self) -> set[str]:
        return {runner.config.group for runner in self._runners.values()}

    def _publish_removed_groups(self, before: set[str]) -> None:
        """Tells which groups are in use no more."""
        for group in sorted(before - self._groups()):
            self._services.listeners.unsubscribe(group)
            self._services.listeners.publish([event_types.group_removed(group)])


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
