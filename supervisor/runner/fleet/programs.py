"""All programs of the daemon: adding, removing, updating to a new configuration, leaving together."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import structlog

from supervisor.config import Config, ProgramConfig
from supervisor.config.broken_sections import BrokenSection, leave_out_broken
from supervisor.config.load import SectionsBroken, start_order
from supervisor.core.failures.restart import Cause
from supervisor.core.listeners import event_types
from supervisor.core.program.facts import ALIVE, State
from supervisor.host.ledger.ledger import Ledger, LedgerError
from supervisor.host.logs.output_events import ProgramOutput
from supervisor.host.processes import marks
from supervisor.runner.attempt import adopting
from supervisor.runner.attempt.adopting import Leftovers
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet import takeover
from supervisor.runner.fleet.gates import DependencyGates
from supervisor.runner.fleet.leftovers import LeftoverProcesses
from supervisor.runner.fleet.ordering import StartTurn, StartTurns
from supervisor.runner.fleet.retirement import FleetRetirement
from supervisor.runner.fleet.takeover import Takeover
from supervisor.runner.fleet.update_losses import find_losses
from supervisor.runner.program.runner import Runner

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new configuration would change, by program name, and the sections that can't be loaded.

    `remarks`: what is to be said of the file, and was not said before. `not_applied`: why the last update did not apply
    changes of these programs.
    """

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    broken: tuple[BrokenSection, ...] = ()
    remarks: tuple[str, ...] = ()
    not_applied: Mapping[str, str] = field(default_factory=dict)


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


class Programs:
    """The runners of the programs in use, kept in `runners`, by name, which others may hold too.

    `read` gives the configuration file's present content; it raises ConfigError. `on_change` is called after every
    change of a program's state, `on_added` with every program that an update takes into use, before it starts.
    """

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        services: Services,
        runners: dict[str, Runner] | None = None,
        *,
        on_change: Callable[[], None] = lambda: None,
        on_added: Callable[[Runner], None] = lambda runner: None,
    ) -> None:
        self.runners = {} if runners is None else runners
        self.closing = False
        self._on_change = on_change
        self._on_added = on_added
        self.gates = DependencyGates(self.runners, services.ledger)
        removed = _removed_names(services.ledger)
        for name, program in config.programs.items():
            if name not in removed:
                self.runners[name] = Runner(program, services, self._on_state_change)
        self._configured: Mapping[str, ProgramConfig] = config.programs
        self._remarks = frozenset(config.warnings)  # the start logs them
        self._read = read
        self._services = services
        self._updating = asyncio.Lock()
        leftovers = LeftoverProcesses()
        self.retirement = FleetRetirement(self.runners, self.gates, leftovers, services.listeners)
        self._takeover = Takeover(services, leftovers, self.gates, lambda: self.closing)
        self._begun = False
        self._adoption_settled = asyncio.Event()
        """Set once all are taken up, and what is left of programs that are configured no more is being ended."""

    @property
    def configured(self) -> Mapping[str, ProgramConfig]:
        """The programs of the configuration as it was last read, whether in use or not."""
        return self._configured

    def _on_state_change(self) -> None:
        self.gates.recheck_soon()
        self._on_change()

    def on_output(self, output: ProgramOutput) -> None:
        """One of them printed something that event listeners are to hear."""
        if (runner := self.runners.get(output.program)) is not None:
            runner.on_output(output)

    def has_worker(self, pid: int) -> bool:
        """Whether a child with this pid is a program's, so that its exit status is waited for.

        Until all that an earlier daemon left is taken over, any child may be.
        """
        if not all(runner.adoption_settled.is_set() for runner in self.runners.values()):
            return True
        return any(pid == runner.pid or pid in runner.standby_pids for runner in self.runners.values())

    async def start_all(self) -> None:
        """Takes up every configured program, side by side: goes on with the workers of an earlier daemon; what else was
        wanted before, or starts by itself, is started.
        """
        self._begun = True
        groups = dict.fromkeys(member.config.group for member in self.runners.values())  # in the order of their start
        begun = [*(event_types.group_added(group) for group in groups), event_types.daemon_running()]
        self._services.listeners.publish(begun)
        try:
            await self._begin()
        finally:
            self._adoption_settled.set()
            for runner in self.runners.values():
                runner.adoption_settled.set()

    async def _begin(self) -> None:
        ledger = self._services.ledger
        wanted, ends, last, unfinished, marked = await asyncio.gather(
            asyncio.to_thread(ledger.wanted.wanted_programs),
            asyncio.to_thread(ledger.attempts.last_ends),
            asyncio.to_thread(takeover.last_attempts, self._services),
            asyncio.to_thread(ledger.attempts.unfinished_attempts),
            asyncio.to_thread(marks.processes_of_daemon, self._services.state_dir),
        )
        for value in marked:  # the ledger may have missed an attempt that was just beginning
            name = marks.program_of(value)
            last[name] = max(last.get(name, 0), marks.attempt_of(value))
        own = adopting.OwnFolders(self._services.state_dir, self._services.runtime_dir)
        left = await asyncio.to_thread(adopting.leftovers_by_program, unfinished, marked, own)
        for name, runner in self.runners.items():
            runner.set_wanted(wanted.get(name, runner.config.autostart))
            if (end := ends.get(name)) is not None and end.cause == Cause.DONE:
                runner.recall_completion(end)
        turns = StartTurns(len(self.runners))
        async with asyncio.TaskGroup() as group:
            for (name, runner), turn in zip(self.runners.items(), turns, strict=True):  # in the order of their priority
                group.create_task(self._takeover.bring_up(runner, left.get(name, Leftovers()), last.get(name, 0), turn))
            group.create_task(turns.release_in_order())
            for name in left.keys() - self.runners.keys():
                group.create_task(self._takeover.end_unconfigured(name, left[name]))
            self._adoption_settled.set()  # who waits for that goes on after these tasks have begun
        await self._takeover.note_folder()

    async def reread(self, *, is_whole: bool = False) -> Changes:
        """Reads the configuration and says what is different; nothing is touched. Raises ConfigError.

        Sections of programs that can't be loaded are left out, unless it has to be whole. What is to be said of the
        file, and was not before, is logged, too.
        """
        broken: tuple[BrokenSection, ...] = ()
        try:
            config = await asyncio.to_thread(self._read)
        except SectionsBroken as error:
            if is_whole:
                raise
            in_use = {name: member.config for name, member in self.runners.items()}
            config, broken = await asyncio.to_thread(leave_out_broken, error, in_use)
            log.error(
                "configuration.partly_refused", error=str(error), sections=[section.section for section in broken]
            )
        self._configured = config.programs
        remarks = tuple(str(warning) for warning in config.warnings if warning not in self._remarks)
        for text in remarks:
            log.warning("configuration.remark", text=text)
        self._remarks = frozenset(config.warnings)
        for name, runner in self.runners.items():
            if config.programs.get(name) == runner.config:
                runner.not_applied = None
        return replace(self.changes(), broken=broken, remarks=remarks)

    async def update(self, names: Iterable[str] | None = None, *, discard: bool = False) -> list[UpdateAction]:
        """Makes the programs what the configuration last read says, side by side, touching only what differs.

        `names` limits it to some. Gives what was done, programs by name. New ones start, and old ones stop, in
        the order of their priority. A program that was stopped by its operator is changed and stays stopped. A job that
        would lose steps is left as it is (refused), unless `discard` says that they may be lost.
        """
        async with self._updating:
            configured, changes = self._configured, self.changes()
            before = self._groups()
            differing = {*changes.added, *changes.changed, *changes.removed}
            chosen = sorted(differing if names is None else differing & set(names))
            refused = {} if discard else await self.find_losses(chosen)
            for name, why in refused.items():
                self.runners[name].not_applied = why
                log.error("configuration.not_applied", program=name, why=why)
            actions = {name: [UpdateAction(name, "refused", why)] for name, why in refused.items()}
            applied = [name for name in chosen if name not in refused]
            last = await asyncio.to_thread(takeover.last_attempts, self._services)
            begin = {configured[name].group for name in applied if name in configured} - before
            self._services.listeners.publish([event_types.group_added(group) for group in sorted(begin)])
            in_order = sorted(applied, key=lambda name: start_order(configured.get(name) or self.runners[name].config))
            turns = StartTurns(len(in_order))
            renewals = {
                name: self._replace(name, configured.get(name), last.get(name, 0), turn)
                for name, turn in zip(in_order, turns, strict=True)
            }
            stops_first = list(reversed(renewals))
            done = await turns.run_all(renewals[name] for name in stops_first)
            self._publish_removed_groups(before)
            actions |= dict(zip(stops_first, done, strict=True))
            return [action for name in chosen for action in actions[name]]

    async def find_losses(self, names: Iterable[str]) -> dict[str, str]:
        """Why applying the configuration last read would lose steps, by job."""
        runners = [self.runners[name] for name in names if name in self.runners]
        return await find_losses(runners, self._configured, self._services.checkpoints)

    async def remove(self, names: Iterable[str]) -> str | None:
        """Takes programs out of use until they are added again, also after a restart of the daemon.

        If one of them runs or waits to be started again, nothing is done and its name is given.
        """
        async with self._updating:
            before = self._groups()
            runners = [self.runners[name] for name in names if name in self.runners]
            for runner in runners:
                await runner.startable.wait()
            for runner in runners:
                if runner.state in ALIVE or runner.state is State.BACKOFF or runner.waits_for is not None:
                    return runner.name
            for runner in runners:
                del self.runners[runner.name]
                self._services.ledger.wanted.forget_program(runner.name)
                self._services.ledger.wanted.record_removed(runner.name)
            self._publish_removed_groups(before)
            return None

    def _groups(self) -> set[str]:
        return {runner.config.group for runner in self.runners.values()}

    def _publish_removed_groups(self, before: set[str]) -> None:
        """Tells which groups are in use no more."""
        for group in sorted(before - self._groups()):
            self._services.listeners.unsubscribe(group)
            self._services.listeners.publish([event_types.group_removed(group)])

    async def stop_all(self) -> None:
        """Flushes and stops all programs. Returns when no process is left, old or new."""
        self._close()
        if self._begun:
            await self._adoption_settled.wait()
        for runner in list(self.runners.values()):  # an update that is under way changes them meanwhile
            if self._begun:
                await runner.adoption_settled.wait()  # who has a worker has to flush it
            runner.startable.set()  # what stands in the way of a start is no longer of interest
            runner.waits_for = None
        await self.retirement.retire_all()

    def _close(self) -> None:
        self.closing = True
        self._services.listeners.publish([event_types.daemon_stopping()])

    def hand_over(self) -> None:
        """Leaves all that runs, as it is, to the daemon that this one is about to become."""
        self._close()
        for runner in self.runners.values():
            runner.hand_over()

    def changes(self) -> Changes:
        """What the configuration last read would change."""
        used, configured = self.runners, self._configured
        return Changes(
            added=tuple(sorted(configured.keys() - used.keys())),
            changed=tuple(
                sorted(name for name in configured.keys() & used.keys() if configured[name] != used[name].config)
            ),
            removed=tuple(sorted(used.keys() - configured.keys())),
            not_applied={name: runner.not_applied for name, runner in used.items() if runner.not_applied is not None},
        )

    async def _replace(
        self, name: str, config: ProgramConfig | None, last_attempt: int, turn: StartTurn
    ) -> list[UpdateAction]:
        """Takes a program from its old configuration, if it had one, to its new one, if it has one."""
        old = self.runners.get(name)
        stopped = UpdateAction(name, "stopped")
        if old is not None:
            turn.give_up()  # it has to flush and stop, and may take long to
            stopped = await _retire_for_update(old)
            last_attempt = max(last_attempt, old.attempt)
            del self.runners[name]
        self._services.ledger.wanted.record_added(name)
        if config is None:
            self._services.ledger.wanted.forget_program(name)
            return [stopped, UpdateAction(name, "removed")]
        runner = self.runners[name] = Runner(config, self._services, self._on_state_change)
        runner.set_wanted(old.wanted if old is not None else config.autostart)
        try:
            self._on_added(runner)
            await self._takeover.bring_up(runner, Leftovers(), last_attempt, turn)
        finally:  # after an error it can be started by hand: nothing of it runs
            turn.give_up()
            runner.adoption_settled.set()
            runner.startable.set()
        return [UpdateAction(name, "added")] if old is None else [stopped, UpdateAction(name, "updated")]


async def _retire_for_update(runner: Runner) -> UpdateAction:
    """Flushes and stops a program, whose section changes; what is said of that."""
    await runner.adoption_settled.wait()
    attempt, was_alive = runner.attempt, runner.state in ALIVE
    await runner.retire("update")
    progress = runner.progress_of(attempt) if was_alive else None
    if progress is None:
        return UpdateAction(runner.name, "stopped")
    text, is_loss = progress.describe_end(), not progress.is_safe
    return UpdateAction(runner.name, "stopped", text, progress.unsaved, is_loss=is_loss)


def _removed_names(ledger: Ledger) -> frozenset[str]:
    """What somebody took out of use; nothing if the ledger can't be read, as what is configured is meant to run."""
    try:
        return ledger.wanted.removed_programs()
    except LedgerError as error:
        log.error("ledger.unread", error=str(error), effect="programs that were removed are in use again")
        return frozenset()
