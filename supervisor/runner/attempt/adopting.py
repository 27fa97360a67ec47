"""What an earlier daemon left of each program: a worker to adopt, processes to end, attempts without an end.

How adoption works, from here (what a job then does is decided in `core/actions/adopting.py`):

1. The daemon starts and `fleet/programs.py` reads, in threads, the attempts without an end from the ledger, and from
   /proc every process that carries a mark signed by this daemon in its environment. The mark names state folder,
   program and attempt, and children inherit it, so that nothing that was started is missed, not even by a daemon that
   was killed between starting a process and writing it down.
2. `leftovers_by_program` sorts both by program. A process is the worker to adopt if it is the pid and start time that
   the ledger has for the newest attempt, and if it was started from this very state folder: a ledger may have been
   copied with its folder (`host/processes/ownership.py` says how that is told). What another folder's daemon started
   is neither adopted nor ended, and said; the attempt then counts as ended unseen, and what it saved since is the
   original's. The worker's companions are left
   alone; everything of older attempts has to end before anything new is started, because two workers must never write
   for one job.
3. `AttemptStarter.adopt` opens a pidfd for the process and the control pipes in the attempt's folder as they are: the
   worker holds both ends open, so nothing that it wrote meanwhile is lost. Then the core gets `AttemptFound` and asks
   the worker for its status (state ADOPTING). Of a plain program, the sockets for notifications are opened again.
   Before either, it takes hold of what the worker has in memory, without its word.
4. If the worker can't be reached (its pipes are gone, or a newer attempt has begun), it is ended like any leftover. Of
   a job the core then gets `AttemptLost`, with that it was ended here, so that what it had in memory is not lost.
5. If an attempt has no worker any more, `reconstruct_end` reads how it ended: the last messages from its folder,
   which stays until the ledger has that end, the newest checkpoint of its number, whether the host was rebooted. The
   core gets that as `AttemptLost`, and decides as if it had seen the end.
6. A program that is configured no longer is asked through its pipe to flush and exit, and is ended after a while. One
   that is configured again meanwhile starts when that is done, and so does a job that is to save where it did.

`reload` takes the same way: the daemon detaches from everything and executes itself. An event listener is never
adopted, because its pipes ended with the daemon that held them.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from supervisor.config import ProgramConfig
from supervisor.core.program.events import AttemptLost
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.attempts import OpenAttempt
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.pipes import control_pipes
from supervisor.host.processes import marks, ownership, process_status
from supervisor.host.user_folders.folder_removal import try_to_remove_folder
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.listing import ListedCheckpoint
from supervisor.protocol.wire import messages
from supervisor.protocol.wire.messages import Flush, Then
from supervisor.runner.attempt.services import Services

SLOW_DISK_S = 5.0  # how long the end of an attempt waits for a checkpoint directory's listing
_OF_FAILURE = ("error", "step", "out_of_memory", "go_back", "code", "errno", "gang_attempt")  # of the last message
REMOVED_FLUSH_ID = 1 << 40  # higher than any that a daemon counted up to, so that no answer can be mistaken


@dataclass(frozen=True, slots=True)
class LeftoverWorker:
    """A live process that is an attempt's worker by the ledger. `start_time` in clock ticks.

    `mark`: of it and all it started, None for a zombie or a process that cleared its environment.
    `began_wall_at`: when the attempt began, by the ledger.
    """

    attempt: int
    pid: int
    start_time: int
    mark: str | None = None
    began_wall_at: float | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the attempt began, time asleep included; one that was a standby is younger than its process."""
        process_s = time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_time / os.sysconf("SC_CLK_TCK")
        if self.began_wall_at is None or self.mark is None or not marks.is_standby(self.mark):
            return process_s
        return min(process_s, max(0.0, time.time() - self.began_wall_at))


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left of one program.

    `worker`: the live process of its newest attempt; `companions`: other processes of that attempt. `strays`: processes
    of other attempts. `open_attempts`: attempts whose end was never recorded, the worker's among them;
    `cut_off_by_host`: those of them that ended with the host. `foreign`: a live process that the ledger has for the
    newest attempt, and that another state folder's daemon started; `foreign_attempts`: those that it may have gone on
    with after this folder was copied from there, whether or not they still run.
    """

    worker: LeftoverWorker | None = None
    companions: tuple[psutil.Process, ...] = ()
    strays: tuple[psutil.Process, ...] = ()
    open_attempts: tuple[int, ...] = ()
    cut_off_by_host: frozenset[int] = frozenset()
    foreign: "ForeignProcess | None" = None
    foreign_attempts: frozenset[int] = frozenset()

    def without_worker(self) -> "Leftovers":
        """For a worker that can't be adopted: all its processes are strays, which have to end."""
        return replace(self, worker=None, companions=(), strays=self.strays + self.companions)

    def was_cut_off(self, attempt: int) -> bool:
        return attempt in self.cut_off_by_host

    def is_foreign(self, attempt: int) -> bool:
        return attempt in self.foreign_attempts


@dataclass(frozen=True, slots=True)
class ForeignProcess:
    """A process of a daemon with another state folder. `whose`: that folder's path, as far as the process says."""

    attempt: int
    pid: int
    whose: str | None


@dataclass(frozen=True, slots=True)
class OwnFolders:
    """The folders by which a daemon's processes are told from those of a copied folder's daemon."""

    state_dir: Path
    runtime_dir: Path


def leftovers_by_program(
    unfinished: Iterable[OpenAttempt], marked: Mapping[str, list[psutil.Process]], own: OwnFolders
) -> dict[str, Leftovers]:
    """Sorts what an earlier daemon left, by program; reads /proc."""
    opened: dict[str, list[OpenAttempt]] = {}
    for attempt in unfinished:
        opened.setdefault(attempt.program, []).append(attempt)
    names, is_copy = {*opened, *(marks.program_of(value) for value in marked)}, ownership.is_copy(own.state_dir)
    return {
        name: _leftovers_of(name, sorted(opened.get(name, []), key=lambda entry: entry.attempt), marked, own, is_copy)
        for name in names
    }


def _leftovers_of(
    name: str, opened: list[OpenAttempt], marked: Mapping[str, list[psutil.Process]], own: OwnFolders, is_copy: bool
) -> Leftovers:
    mine = {value: processes for value, processes in marked.items() if marks.program_of(value) == name}
    newest = max([*map(marks.attempt_of, mine), *(attempt.attempt for attempt in opened)])
    candidate = _find_worker(opened[-1], mine, own) if opened and opened[-1].attempt == newest else None
    worker = candidate if isinstance(candidate, LeftoverWorker) else None
    foreign = candidate if isinstance(candidate, ForeignProcess) else None
    its = {value for value in mine if worker is not None and _is_mark_of(value, worker)}
    strays = [process for value, processes in mine.items() for process in processes if value not in its]
    with_it = [process for value in its for process in mine[value]]
    cut_off = frozenset(attempt.attempt for attempt in opened if not attempt.of_this_boot)
    numbers = tuple(attempt.attempt for attempt in opened)
    gone = {number for number in numbers if worker is None or number != worker.attempt} if is_copy else set[int]()
    theirs = frozenset(gone if foreign is None else gone | {foreign.attempt})
    return Leftovers(worker, tuple(with_it), tuple(strays), numbers, cut_off, foreign, theirs)


def _is_mark_of(value: str, worker: LeftoverWorker) -> bool:
    """Whether a mark is that of the worker's attempt; one that was a standby keeps the mark it was started with."""
    return value == worker.mark or (not marks.is_standby(value) and marks.attempt_of(value) == worker.attempt)


def _find_worker(
    opened: OpenAttempt, marked: Mapping[str, list[psutil.Process]], own: OwnFolders
) -> LeftoverWorker | ForeignProcess | None:
    """The ledger's process, if pid and start time agree and it has no mark of another attempt."""
    if not opened.of_this_boot or opened.pid <= 0 or process_status.read_start_time(opened.pid) != opened.start_time:
        return None
    values = (value for value, processes in marked.items() if any(process.pid == opened.pid for process in processes))
    its = next(values, None)
    if its is not None and not marks.is_standby(its) and marks.attempt_of(its) != opened.attempt:
        return None
    folder = layout.attempt_folder(own.runtime_dir, opened.program, opened.attempt)
    if its is not None and not marks.is_of_daemon(its, own.state_dir) and not ownership.has_pipes(opened.pid, folder):
        return None  # its folder was replaced, and its pipes with it
    if its is None and not (verdict := ownership.judge(opened.pid, own.state_dir, folder)).is_ours:
        return ForeignProcess(opened.attempt, opened.pid, verdict.whose)
    return LeftoverWorker(opened.attempt, opened.pid, opened.start_time, its, opened.started_at)


def remove_ended_folders(runtime_dir: Path, programs: Collection[str], unfinished: Iterable[OpenAttempt]) -> None:
    """Removes what attempts have left whose end is recorded, or that never were. Call it before any begins.

    `programs`: those of this daemon; another one may have had the same folder.
    """
    open_attempts = {(attempt.program, attempt.attempt) for attempt in unfinished}
    for name, attempts in layout.attempts_with_folders(runtime_dir).items():
        for attempt in attempts if name in programs else ():
            if (name, attempt) not in open_attempts:
                try_to_remove_folder(layout.attempt_folder(runtime_dir, name, attempt))


@dataclass(frozen=True, slots=True)
class UnseenEnd:
    """How an attempt ended while no daemon ran. `words`: its last messages; `saved`: what it committed and is still on
    the disk, newest first."""

    lost: AttemptLost
    words: list[messages.FromWorker]
    saved: list[ListedCheckpoint]

    @property
    def lived_s_ago(self) -> float | None:
        """How many seconds ago it saved last; None: not known, as where the clock was set back."""
        saved_wall_at = self.saved[0].created_wall_at if self.saved else None
        ago_s = None if saved_wall_at is None else time.time() - saved_wall_at
        return None if ago_s is None or ago_s < 0 else ago_s


async def reconstruct_end(
    config: ProgramConfig,
    attempt: int,
    host_left: bool,
    runtime_dir: Path,
    checkpoints: CheckpointStore,
    directory: Path | None = None,
) -> UnseenEnd:
    """Finds out how an attempt ended while no daemon ran: from its last messages and its checkpoints.

    `directory`: where it saved; None: in the job's checkpoint_dir.
    A checkpoint directory that does not answer within SLOW_DISK_S is ignored.
    """
    folder = layout.attempt_folder(runtime_dir, config.name, attempt)
    words = await asyncio.to_thread(control_pipes.read_last_words, folder, attempt)
    last = next((word for word in reversed(words) if isinstance(word, messages.Done | messages.Failed)), None)
    done, failed = isinstance(last, messages.Done), last if isinstance(last, messages.Failed) else None
    saved = await saved_by(config, attempt, checkpoints, directory)
    step = saved[0].step if saved else None
    said = {} if failed is None else {name: getattr(failed, name) for name in _OF_FAILURE}
    lost = AttemptLost(attempt, done, committed_step=step, host_rebooted=host_left, **said)
    return UnseenEnd(lost, words, saved)


async def saved_by(
    config: ProgramConfig, attempt: int, checkpoints: CheckpointStore, directory: Path | None
) -> list[ListedCheckpoint]:
    """What an attempt saved and is still on the disk, newest first; nothing if that does not answer in time."""
    if config.job is None:
        return []
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(SLOW_DISK_S):
            listing = await checkpoints.list_checkpoints(
                directory or config.job.checkpoint_dir, verify=False, user=config.user
            )
        mine = [entry for entry in listing if entry.attempt == attempt and not (entry.quarantined or entry.fetched)]
        return sorted(mine, key=lambda entry: entry.step, reverse=True)
    return []


async def record_unheard_saves(config: ProgramConfig, attempt: int, services: Services, directory: Path | None) -> None:
    """Records what an adopted worker saved while no daemon ran: it may have exited before its pipes were opened."""
    record_saved(services.ledger, config.name, await saved_by(config, attempt, services.checkpoints, directory))


def record_saved(ledger: Ledger, name: str, saved: Iterable[ListedCheckpoint]) -> None:
    """Records what an attempt saved that no daemon may have heard of: the pipes end with a worker that is dead."""
    for entry in sorted(saved, key=lambda entry: entry.step):
        at = entry.created_wall_at or time.time()
        ledger.checkpoints.checkpoint_found(name, entry.attempt, entry.name, entry.step, entry.size_bytes, at)


def request_flush_and_exit(runtime_dir: Path, name: str, attempt: int, patience_s: float) -> bool:
    """Asks the worker of a program that is no longer configured to flush and exit; False if its pipes are gone."""
    folder = layout.attempt_folder(runtime_dir, name, attempt)
    return control_pipes.send_once(folder, Flush(attempt, REMOVED_FLUSH_ID, "update", Then.STOP, patience_s))
