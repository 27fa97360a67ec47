"""All programs of the daemon: taken up together when it starts, and left together when it ends."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import psutil
import structlog

from supervisor.config import Config
from supervisor.core.failures.restart import Cause
from supervisor.core.listeners import event_types
from supervisor.host.ledger.ledger import Ledger, LedgerError
from supervisor.host.logs.output_events import ProgramOutput
from supervisor.host.memory_tier import handed_over
from supervisor.host.memory_tier.handed_over import LeftMemory
from supervisor.host.processes import marks, ownership
from supervisor.host.processes.leftovers import leads_session
from supervisor.runner.attempt import adopting
from supervisor.runner.attempt.adopting import Leftovers
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet import takeover
from supervisor.runner.fleet.configuration import ConfigurationReader
from supervisor.runner.fleet.gates import DependencyGates
from supervisor.runner.fleet.leftovers import LeftoverProcesses
from supervisor.runner.fleet.ordering import StartTurns
from supervisor.runner.fleet.replacement import moves
from supervisor.runner.fleet.retirement import FleetRetirement
from supervisor.runner.fleet.takeover import Takeover
from supervisor.runner.fleet.updating import Updating
from supervisor.runner.memory_tier.holder import MemoryHolder
from supervisor.runner.program.retiring import retire, until_memory_is_written
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

WRITTEN_WITHIN_S = 30.0  # a disk that takes longer for what was in memory may be dead
ADOPTION_WAIT_S = 2.0  # adopting takes milliseconds, a gang's meeting minutes

log = structlog.get_logger()


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
        on_change: Callable[[], None] = lambda: None,
        on_added: Callable[[Runner], None] = lambda runner: None,
    ) -> None:
        self.runners = {} if runners is None else runners
        self.closing = False
        self._on_change = on_change
        self.gates = DependencyGates(self.runners, services.ledger, services.loop_share)
        removed = _removed_names(services.ledger)
        for name, program in config.programs.items():
            if name not in removed:
                self.runners[name] = Runner(program, services, self._on_state_change)
        self._services = services
        leftovers = LeftoverProcesses()
        self.retirement = FleetRetirement(self.runners, self.gates, leftovers, services.listeners)
        self._takeover = Takeover(services, leftovers, self.gates, lambda: self.closing)
        self._adoption_settled = asyncio.Event()
        """Set once all are taken up, and what is left of programs that are configured no more is being ended."""
        self.configuration = ConfigurationReader(config, read, services, self.runners)
        """As it was last read."""
        self.updating = Updating(
            self.configuration,
            services,
            self.runners,
            self._takeover,
            self._adoption_settled,
            on_state_change=self._on_state_change,
            on_added=on_added,
        )
        """Brings that into use."""
        self._begun = False
        self._shown_from: float | None = None

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
        if not all(runner.takeover.is_adoption_settled for runner in self.runners.values()):
            return True
        return any(pid == runner.pid or pid in runner.standby_pids for runner in self.runners.values())

    async def until_adopted(self) -> None:
        """Returns once it is known which workers of an earlier daemon run, or shortly after somebody first asked: until
        then they would be shown as stopped.
        """
        if self._shown_from is None:
            self._shown_from = asyncio.get_running_loop().time() + ADOPTION_WAIT_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._shown_from):
                for runner in tuple(self.runners.values()):
                    await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)

    async def until_adoption_settled(self, runner: Runner) -> None:
        """Returns once it is known whether an earlier daemon's worker runs; at once while the nodes of a gang meet."""
        if self._begun:
            await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)

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
                runner.takeover.advance(TakeoverStage.ADOPTION_SETTLED)

    async def _begin(self) -> None:
        ledger = self._services.ledger
        wanted, ends, used, unfinished, marked, replaced = await asyncio.gather(
            asyncio.to_thread(ledger.wanted.wanted_programs),
            asyncio.to_thread(ledger.attempts.last_ends),
            asyncio.to_thread(takeover.used_attempts, self._services),
            asyncio.to_thread(ledger.attempts.unfinished_attempts),
            asyncio.to_thread(marks.processes_of_daemon, self._services.state_dir),
            asyncio.to_thread(ownership.processes_of_replaced_folder, self._services.state_dir),
        )
        marked = self._left_by_others(marked) | replaced.abandoned
        self._say_left_of_replaced_folder(replaced)
        for value in marked:  # the ledger may have missed an attempt that was just beginning
            name = marks.program_of(value)
            used[name].seen = max(used[name].seen, marks.attempt_of(value))
        own = adopting.OwnFolders(self._services.state_dir, self._services.runtime_dir)
        left = await asyncio.to_thread(adopting.leftovers_by_program, unfinished, marked, own)
        memories = handed_over.take_over(own.runtime_dir, own.state_dir)
        for memory in memories.held:
            if (holder := self._holder_for(memory)) is not None:
                holder.keep(memory)
            else:
                memory.held.close()
        for name, memory in memories.left.items():
            if (holder := self._holder_for(memory)) is not None:
                holder.take_over(memory)
            else:
                why, effect = "its section is another now, or gone", "the steps since the newest checkpoint are lost"
                log.error("memory.lost", program=name, attempt=memory.attempt, why=why, effect=effect)
                memory.held.close()
        its = {*self.runners, *(name for name, attempts in used.items() if attempts.recorded)}
        await asyncio.to_thread(adopting.remove_ended_folders, self._services.runtime_dir, its, unfinished)
        for name, runner in self.runners.items():
            runner.set_wanted(wanted.get(name, runner.config.autostart))
            end = ends.get(name)
            if end is not None and end.cause == Cause.DONE:
                runner.recall_completion(end)
            elif end is not None and end.ended_at is not None and not runner.wanted:
                runner.records.recall_end(end)
        turns = StartTurns(len(self.runners))
        async with asyncio.TaskGroup() as group:
            for name in left.keys() - self.runners.keys():  # before one that is to save where it does
                group.create_task(_alone(name, self._takeover.end_unconfigured(name, left[name])))
            for (name, runner), turn in zip(self.runners.items(), turns, strict=True):  # in the order of their priority
                taken_up = self._takeover.bring_up(runner, left.get(name, Leftovers()), used[name], turn)
                group.create_task(_alone(name, taken_up, turn.give_up))
            group.create_task(turns.release_in_order())
            self._adoption_settled.set()  # who waits for that goes on after these tasks have begun
        await self._takeover.note_folder()

    def _holder_for(self, memory: LeftMemory) -> MemoryHolder | None:
        """What holds the memory of the job that a worker's state is of, if that can still use it."""
        runner = self.runners.get(memory.program)
        holder = None if runner is None else runner.memory
        return holder if holder is not None and holder.is_for(memory) else None

    def _say_left_of_replaced_folder(self, replaced: ownership.OfReplacedFolder) -> None:
        """The state folder was deleted, or a backup was restored, while its workers ran."""
        path = str(self._services.state_dir)
        if replaced.abandoned:
            pids = sorted(process.pid for processes in replaced.abandoned.values() for process in processes)
            log.warning("folder.replaced", path=path, pids=pids, effect="no other daemon has them: they are taken over")
        for mark, processes in replaced.others.items():
            runner = self.runners.get(marks.program_of(mark))
            if runner is not None:
                pids = [process.pid for process in processes if leads_session(process.pid)]
                runner.takeover.left_alone |= {*pids}
                effect = "nothing proves that they are ours: they are left alone"
                log.warning("folder.replaced", path=path, program=runner.name, pids=pids, effect=effect)

    def _left_by_others(self, marked: dict[str, list[psutil.Process]]) -> dict[str, list[psutil.Process]]:
        """Less the standbys that this daemon has started while it met the rest of its gang."""
        own = {pid for runner in self.runners.values() for pid in runner.standby_pids}
        left = {value: [process for process in its if process.pid not in own] for value, its in marked.items()}
        return {value: processes for value, processes in left.items() if processes}

    async def stop_all(self) -> None:
        """Flushes and stops all programs. Returns when no process is left, old or new."""
        self._close()
        if self._begun:
            await self._adoption_settled.wait()
        for runner in list(self.runners.values()):  # an update that is under way changes them meanwhile
            if self._begun:
                await runner.takeover.until(TakeoverStage.ADOPTION_SETTLED)  # who has a worker has to flush it
            runner.takeover.advance(TakeoverStage.STARTABLE)  # what stands in the way of a start matters no more
            runner.waits_for = None
        await self.retirement.retire_all()

    def _close(self) -> None:
        self.closing = True
        self._services.listeners.publish([event_types.daemon_stopping()])

    async def hand_over(self) -> None:
        """Leaves all that runs, as it is, to the daemon that this one is about to become.

        What dead workers left in memory is written first, if the disks answer, and goes with this process otherwise, as
        what live ones have there: they may be dead before that daemon has come. A job that will fetch its checkpoints
        into another directory stops here: the next daemon, which knows that directory alone, could not upload what the
        stop saved.
        """
        configured = self.configuration.programs
        runners = list(self.runners.values())
        moving = [
            runner for runner in runners if runner.mirror is not None and moves(runner, configured.get(runner.name))
        ]
        await asyncio.gather(*(retire(runner, "reload", needs_mirror=True) for runner in moving))
        for runner in runners:
            runner.release_exit()  # what it left in memory is to be written before this daemon is gone
        await asyncio.gather(*(until_memory_is_written(runner, WRITTEN_WITHIN_S) for runner in runners))
        self._close()
        for runner in self.runners.values():
            runner.release_exit()  # of one that died meanwhile
        memories = [runner.memory.hand_over() for runner in self.runners.values() if runner.memory is not None]
        held = [
            memory
            for runner in self.runners.values()
            if runner.memory is not None
            for memory in runner.memory.hand_over_held()
        ]
        handed_over.hand_over(self._services.runtime_dir, self._services.state_dir, filter(None, memories), held)
        for runner in self.runners.values():
            runner.hand_over()


async def _alone(name: str, work: Awaitable[None], at_end: Callable[[], None] = lambda: None) -> None:
    """Does what has to be done for one program at the start; if that fails, it takes no other program with it."""
    try:
        await work
    except Exception as error:  # else all would be stopped, those too whose workers have been adopted
        effect = "nothing of it is started or ended by this daemon"
        remedy = "please report this record; supervisorctl reload tries again"
        log.error("internal.failed", program=name, error=repr(error), effect=effect, remedy=remedy, exc_info=error)
    finally:
        at_end()


def _removed_names(ledger: Ledger) -> frozenset[str]:
    """What somebody took out of use; nothing if the ledger can't be read, as what is configured is meant to run."""
    try:
        return ledger.wanted.removed_programs()
    except LedgerError as error:
        log.error("ledger.unread", error=str(error), effect="programs that were removed are in use again")
        return frozenset()
