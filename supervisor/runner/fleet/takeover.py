"""Takes over what an earlier daemon left: adopts workers, ends leftover processes, records attempts that ended."""

import asyncio
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from supervisor.core.failures.restart import Cause
from supervisor.core.program import events
from supervisor.core.program.facts import State
from supervisor.host.processes import leftovers, marks, ownership
from supervisor.host.resources.cgroup import Cgroup
from supervisor.host.resources.oom_kills import oom_evidence
from supervisor.host.user_folders.folder_removal import resume_removal, try_to_remove_folder
from supervisor.protocol import layout
from supervisor.runner.attempt import adopting
from supervisor.runner.attempt.adopting import Leftovers, LeftoverWorker
from supervisor.runner.attempt.launching import config_digest
from supervisor.runner.attempt.services import Services
from supervisor.runner.fleet.gates import DependencyGates
from supervisor.runner.fleet.leftovers import LeftoverProcesses
from supervisor.runner.fleet.ordering import StartTurn
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage

GANG_EXIT_TIMEOUT_S = 2.0  # a rank that is left of a gang can't save, and the others wait for this node
UNCONFIGURED_EXIT_TIMEOUT_S = 120.0  # of what is no longer configured flush_timeout is unknown: that is its default

NOT_ADOPTED = "could not be taken over from a daemon that died; ended"

log = structlog.get_logger()


@dataclass(slots=True)
class UsedAttempts:
    """The attempt numbers of one program that are taken. `recorded`: the highest that the ledger knows of, to which its
    facts belong; `seen`: the highest that has pipes or a process. A daemon that was killed as one began may not have
    recorded that, nor the end before.
    """

    recorded: int = 0
    seen: int = 0


def used_attempts(services: Services) -> defaultdict[str, UsedAttempts]:
    """By program: the attempts that the ledger knows of, or whose pipes are still there."""
    resume_removal(services.runtime_dir)
    used = defaultdict[str, UsedAttempts](UsedAttempts)
    for name, attempt in services.ledger.attempts.last_attempts().items():
        used[name].recorded = attempt
    for name, attempt in layout.highest_attempts(services.runtime_dir).items():
        used[name].seen = attempt
    return used


def _saved_in(runner: Runner) -> Path | None:
    """Where the attempt of an earlier daemon saves; None: in the job's checkpoint_dir."""
    directory = runner.facts.current.checkpoint_dir
    return None if directory is None else Path(directory)


class Takeover:
    """Brings programs into use. Nothing starts while `is_closing`."""

    def __init__(
        self,
        services: Services,
        leftover_processes: LeftoverProcesses,
        gates: DependencyGates,
        is_closing: Callable[[], bool],
    ) -> None:
        self._services = services
        self._leftovers = leftover_processes
        self._gates = gates
        self._is_closing = is_closing
        self._unconfigured: dict[str, asyncio.Future[bool]] = {}
        """Programs that are configured no more and are being ended; whether they have."""

    async def bring_up(self, runner: Runner, left: Leftovers, used: UsedAttempts, turn: StartTurn) -> None:
        """Adopts an earlier daemon's worker, or ends its processes and starts the program if it is wanted.

        Leftover processes may take long to end, so a program that has any starts when they are gone and gives up its
        turn; the others start in turn.
        """
        unconfigured, former = self._unconfigured.get(runner.name), self._former_users_of_directory(runner)
        if left.worker is not None or left.strays or unconfigured is not None or former:
            runner.takeover.has_leftovers = True
            turn.give_up()
        self._say_foreign(runner.name, left)
        ends_groups = runner.config.ends_all_processes and unconfigured is None
        groups = await self._groups_of(runner.name, runner.standby_pids) if ends_groups else []
        await runner.restore_state(max(used.recorded, self._services.lowest_attempt - 1), used.seen)
        not_adopted = await self._hold_memory(runner, left)  # it may be dead before it says anything
        is_rank = self._services.gang is not None  # its worker belonged to a gang that is over
        adopted = left.worker is not None and not is_rank and self._adopt(runner, left.worker)
        # read now: a newer attempt may run by the time the others are recorded
        adopted_attempt = runner.attempt if adopted else None
        runner.takeover.advance(TakeoverStage.ADOPTION_SETTLED)
        ended_here = left.worker is not None and not adopted
        if adopted:
            runner.takeover.advance(TakeoverStage.STARTABLE)
        else:
            left = left.without_worker()
        if runner.config.job is not None and self._services.gpus is not None:
            await self._services.gpus.start_once()
        limit_s = GANG_EXIT_TIMEOUT_S if is_rank else runner.stop_limit_s
        in_use = runner.current.cgroup  # before a newer attempt may run
        gone = await self._leftovers.end_all(runner.name, left.strays, limit_s, runner.config.stopsignal)
        if unconfigured is not None:  # configured again while its worker flushes
            gone = await asyncio.shield(unconfigured)
        for ended in former:  # it has another name now, and goes on from what that worker saves
            gone = await asyncio.shield(ended) and gone
        await self._leftovers.end_groups(runner.name, [group for group in groups if group.path != in_use])
        if adopted_attempt is not None:
            await adopting.record_unheard_saves(runner.config, adopted_attempt, self._services, _saved_in(runner))
        recorded = False
        for attempt in left.open_attempts if gone else ():
            if attempt != adopted_attempt:
                recorded = await self._record_unseen_end(
                    runner, attempt, left, not_adopted if ended_here else None, turn
                )
        if not (adopted or recorded):
            runner.records.goodput.on_worker_lost(runner.wanted, None, None)
        await turn.wait_turn()
        runner.takeover.advance(TakeoverStage.STARTABLE)
        if gone and runner.wanted and runner.state is State.STOPPED and not (adopted or self._is_closing()):
            self._gates.start_when_ready(runner, anew=False)

    def _former_users_of_directory(self, runner: Runner) -> list[asyncio.Future[bool]]:
        """Of programs that are configured no more and are being ended, those that saved where this one is to save."""
        job, progress = runner.config.job, self._services.ledger.wanted.progress
        others = [] if job is None else [name for name in self._unconfigured if name != runner.name]
        newest = {name: progress(name).newest for name in others}
        return [
            self._unconfigured[name]
            for name, saved in newest.items()
            if job is not None and saved is not None and saved.directory == str(job.checkpoint_dir)
        ]

    async def _hold_memory(self, runner: Runner, left: Leftovers) -> str:
        """Takes hold of what a worker has in memory. Returns how it ended if it is not adopted, in words."""
        if left.worker is None or runner.memory is None:
            return NOT_ADOPTED
        pids = {left.worker.pid, *(process.pid for process in left.companions)}
        why = await runner.memory.live.find(left.worker.attempt, pids)
        if why is None:
            return NOT_ADOPTED
        return f"{NOT_ADOPTED}; what it may have had in memory can't be reached ({why})"

    async def _groups_of(self, name: str, own: frozenset[int] = frozenset()) -> list[Cgroup]:
        """The control groups that an earlier daemon made for a program, with whatever is still in them.

        Two daemons of one container make groups of the same names, so one in which another daemon's process lives is
        left alone.
        """
        groups = [] if self._services.cgroups is None else self._services.cgroups.groups_of(name)
        return [group for group in groups if own.isdisjoint(pids := group.pids()) and not await self._has_foreign(pids)]

    async def _has_foreign(self, pids: Collection[int]) -> bool:
        """Whether another daemon started one of them."""
        if not pids:
            return False
        state_dir = self._services.state_dir
        return await asyncio.to_thread(lambda: any(ownership.is_of_another(pid, state_dir) for pid in pids))

    async def _record_unseen_end(
        self, runner: Runner, attempt: int, left: Leftovers, ended_here: str | None, turn: StartTurn
    ) -> bool:
        """Records an attempt that ended while no daemon ran. `ended_here`: in words, if this daemon has ended it.

        Returns whether the program's job recorded it and decides what follows.
        """
        is_decided = ended_here is None or (runner.config.job is not None and self._services.gang is None)
        if is_decided and await self._record_lost_attempt(runner, attempt, left, ended_here, turn):
            return True
        if runner.memory is not None:
            runner.memory.live.release(attempt)
        await self._record_end(runner.name, attempt, ended_here or "ended unseen", left.was_cut_off(attempt))
        return False

    def _adopt(self, runner: Runner, left: LeftoverWorker) -> bool:
        """Goes on with the worker of an earlier daemon; False if it can't be reached, or another attempt came later."""
        if runner.config.listener is not None:
            return False  # its pipes went with the daemon that held them
        if left.attempt != runner.attempt or not runner.starter.adopt(left):
            return False
        if runner.mirror is not None:
            runner.mirror.adopt(runner.facts.passed_over)
        runner.records.goodput.on_adopted(left.attempt, left.age_s)
        digest = marks.read_configuration_digest(left.pid)
        is_outdated = digest is not None and digest != config_digest(runner.config)
        runner.post(events.AttemptFound(left.attempt, left.age_s, is_outdated, runner.current.was_ready))
        if runner.memory is not None and runner.memory.live.has(left.attempt):
            runner.post(events.CopiesHeld(left.attempt, is_held=True))
        return True

    async def _record_lost_attempt(
        self, runner: Runner, attempt: int, left: Leftovers, ended_here: str | None, turn: StartTurn
    ) -> bool:
        """Records an attempt that ended while no daemon was there, and goes on from there in its turn.

        False if it isn't the last: nothing is recorded. What would go on but is held back by what it depends on is then
        STOPPED and wanted, and goes on with its next start.
        """
        services, records = self._services, runner.records
        host_left = left.was_cut_off(attempt)
        # the folder that this one is a copy of goes on itself from what was saved there since
        is_mine = attempt == runner.attempt and not left.is_foreign(attempt)
        end = await adopting.reconstruct_end(
            runner.config,
            attempt,
            host_left,
            services.runtime_dir,
            services.checkpoints,
            _saved_in(runner) if is_mine else None,
        )
        lost = end.lost
        if lost.error is None and not lost.done and not host_left and attempt == runner.attempt:
            lost = replace(lost, oom=await asyncio.to_thread(oom_evidence, records.process.oom_counters))
        for message in end.words:
            records.training.on_message(message, time.monotonic())
        if runner.mirror is not None:
            runner.mirror.resume()
        records.goodput.on_worker_lost(runner.wanted, lost.committed_step, end.lived_s_ago)
        adopting.record_saved(services.ledger, runner.name, end.saved)
        if attempt != runner.attempt:
            return False
        facts = {"done": lost.done, "error": lost.error, "step": lost.committed_step}
        log.warning("worker.lost", program=runner.name, attempt=attempt, **facts)
        await turn.wait_turn()
        runner.current.left_folder.keep(layout.attempt_folder(services.runtime_dir, runner.name, attempt))
        is_held_back = runner.wanted and self._gates.is_held_back(runner)
        runner.takeover.is_resuming = runner.takeover.is_resuming or is_held_back
        in_memory = runner.memory is not None and runner.memory.live.has(attempt)
        runner.post(replace(lost, held_back=is_held_back, in_memory=in_memory, not_adopted=ended_here))
        return True

    async def _record_end(self, name: str, attempt: int, text: str, host_left: bool, cause: Cause = Cause.LOST) -> None:
        folder = layout.attempt_folder(self._services.runtime_dir, name, attempt)
        await asyncio.to_thread(try_to_remove_folder, folder)
        recorded_cause, how = (Cause.PREEMPTION, "the host went away") if host_left else (cause, text)
        self._services.ledger.attempts.attempt_ended(name, attempt, recorded_cause, how, None, None, None, time.time())

    async def end_unconfigured(self, name: str, left: Leftovers) -> None:
        """Ends what is left of a program that is no longer configured; its worker may flush first."""
        ended = self._unconfigured[name] = asyncio.get_running_loop().create_future()
        is_gone = False
        try:
            is_gone = await self._end_leftovers_of(name, left)
        finally:
            del self._unconfigured[name]
            ended.set_result(is_gone)

    async def _end_leftovers_of(self, name: str, left: Leftovers) -> bool:
        """Whether none of them runs any more."""
        self._say_foreign(name, left)
        strays = left.without_worker().strays
        with self._leftovers.ending(strays):  # also while a worker flushes
            groups = await self._groups_of(name)
            flushed = left.worker is not None and await self._has_flushed_and_exited(name, left.worker)
            if not await self._leftovers.end_all(name, strays, UNCONFIGURED_EXIT_TIMEOUT_S, signal.SIGTERM):
                return False
            await self._leftovers.end_groups(name, groups)
            text = "configured no more; flushed and left" if flushed else "configured no more; ended"
            cause = Cause.STOPPED if flushed else Cause.LOST
            for attempt in left.open_attempts:
                await self._record_end(name, attempt, text, left.was_cut_off(attempt), cause)
        return True

    async def note_folder(self) -> None:
        """Once all is taken over: from now on the ledger is that of this state folder, wherever it was copied from."""
        state_dir = self._services.state_dir
        try:
            await asyncio.to_thread(ownership.note_folder, state_dir)
        except OSError as error:
            path, effect = str(state_dir / ownership.FOLDER_FILE), "a program without a mark will not be adopted"
            log.warning("folder.not_noted", path=path, reason=error.strerror, effect=effect)

    def _say_foreign(self, name: str, left: Leftovers) -> None:
        if (foreign := left.foreign) is not None:
            log.warning(
                "worker.not_ours",
                program=name,
                attempt=foreign.attempt,
                pid=foreign.pid,
                state_dir=foreign.whose,
                effect="it was started from another state folder, of which this one is a copy: it is left alone",
            )

    async def _has_flushed_and_exited(self, name: str, worker: LeftoverWorker) -> bool:
        """Asks the worker to flush and exit; whether it did so in time."""
        requested = adopting.request_flush_and_exit(
            self._services.runtime_dir, name, worker.attempt, UNCONFIGURED_EXIT_TIMEOUT_S
        )
        return requested and await leftovers.wait_for_exit(worker.pid, worker.start_time, UNCONFIGURED_EXIT_TIMEOUT_S)
