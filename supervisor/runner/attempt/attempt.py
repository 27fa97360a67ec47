"""The live side of an attempt: a process and all that leads to it."""

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from supervisor.host.background_tasks import BackgroundTasks
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.pipes.control_pipes import ControlPipes
from supervisor.host.pipes.listener_pipes import ListenerPipes
from supervisor.host.processes import marks, stacks, tree
from supervisor.host.processes.process import Process
from supervisor.host.resources.cgroup import Cgroup
from supervisor.host.resources.oom_kills import OomWatch
from supervisor.host.user_folders.folder_removal import remove_soon
from supervisor.protocol.layout import STACKS_SIGNAL
from supervisor.protocol.wire import messages
from supervisor.runner.attempt.program_io import ProgramIO

WRITTEN_WITHIN_S = 60.0  # a ledger that takes longer does not work; then the next end removes the folder
KILL_AGAIN_S = 5.0  # what survives SIGKILL is in the kernel, and has to come back from there


@dataclass(slots=True)
class LiveAttempt:
    """A process and all that leads to it. `mark`: of all its processes; `began_at`: monotonic.

    `worker_pid`: of the process in it that trains, which may have been started by another, as it says itself.
    `has_last_message`: it sent `done` or `failed`, and no later run of its script has begun; `reported_done`: it said
    that training is complete; `is_told_to_end`: it was sent the stop signal or SIGKILL.
    """

    number: int
    process: Process
    channel: ControlPipes | None
    memory: OomWatch
    mark: str
    began_at: float
    listener: ListenerPipes | None = None
    io: ProgramIO | None = None  # of a plain program
    cgroup: Cgroup | None = None
    worker_pid: int | None = None
    has_last_message: bool = False
    reported_done: bool = False
    is_told_to_end: bool = False

    def learn(self, message: messages.FromWorker) -> None:
        """Remembers which process it is, and what its last messages say of its end."""
        match message:
            case messages.Hello():
                self.worker_pid = message.pid
            case messages.Done():
                self.has_last_message = self.reported_done = True
            case messages.Failed():
                self.has_last_message = True
            case messages.Restoring() | messages.Restored():
                self.has_last_message = self.reported_done = False
            case messages.WorkerStatus(phase=messages.Phase.DONE):
                self.reported_done = True

    def close_and_read(self) -> list[messages.FromWorker]:
        """Closes what led to the process, which is gone. Gives its last words: the pipe may have been full.

        They stay in its `folder` until its end is on the disk.
        """
        words: list[messages.FromWorker] = []
        if self.io is not None:
            self.io.close_and_remove()
        if self.channel is not None:
            words = self.channel.read_last_words()
            self.channel.close(leaves_folder=True)
        return words

    @property
    def folder(self) -> Path | None:
        """Where the pipes of a worker are, and what it says last."""
        return None if self.channel is None else self.channel.folder

    def kill(self, *, with_descendants: bool) -> None:
        """SIGKILL to the process, or to all that it started, too."""
        self.is_told_to_end = True
        if not with_descendants:
            self.process.send_signal(signal.SIGKILL, group=False)
            return
        if self.cgroup is not None:
            self.cgroup.kill()
        self.process.kill_tree()

    def kill_leftovers(self) -> bool:
        """In a thread: kills what the worker left behind, in its session and out of it. False if some lives on."""
        is_gone = self.cgroup is None or self.cgroup.remove()
        self.process.kill_session()
        tree.kill_all(marks.processes_of_attempt(self.mark))
        return is_gone

    async def kill_leftovers_until_gone(self, log: FilteringBoundLogger) -> None:
        """Until nothing of it is left. Only what the kernel holds can't be killed at once: a dead disk or driver."""
        is_known = False
        while not await asyncio.to_thread(self.kill_leftovers):
            if not is_known and self.cgroup is not None:
                is_known, pids = True, self.cgroup.pids()
                log.warning("worker.left_over", attempt=self.number, pids=pids, next="they are killed again")
            await asyncio.sleep(KILL_AGAIN_S)

    async def save_stacks(self, pipes: Path, dumps: Path, limit_s: float, why: str) -> Path:
        """Writes what the worker's threads are doing into a file below `dumps`, within about half of `limit_s`.

        The other half is for the process to die of SIGABRT. Raises OSError, TimeoutError.
        """

        def work() -> Path:
            text = stacks.collect_stacks(self.process.pid, pipes, request_stacks, limit_s / 2, why)
            return stacks.store_dump(dumps, self.number, text)

        def request_stacks() -> bool:
            return self.process.send_signal(STACKS_SIGNAL, group=False)

        async with asyncio.timeout(limit_s / 2 + 1.0):
            return await asyncio.to_thread(work)

    def detach(self) -> None:
        """Leaves it, as it is, to the next daemon."""
        self.process.detach()
        if self.channel is not None:
            self.channel.detach()
        if self.io is not None:
            self.io.close()


class LeftFolder:
    """The folder with the pipes of a program's last attempt: its last words stay until the ledger has the end.

    A daemon that begins removes what one has left.
    """

    __slots__ = ("_folder", "_ledger", "_tasks")

    def __init__(self, ledger: Ledger, tasks: BackgroundTasks) -> None:
        self._ledger = ledger
        self._tasks = tasks
        self._folder: Path | None = None

    def keep(self, folder: Path | None) -> None:
        """An attempt has left it whose end is about to be recorded; None if it had no pipes. Removes the one before."""
        self._remove()
        self._folder = folder

    def on_end_recorded(self) -> None:
        """The end is queued for the ledger. Once it is there, nobody needs the last words."""
        if (folder := self._folder) is not None:
            self._tasks.start(self._remove_when_written(folder))

    async def _remove_when_written(self, folder: Path) -> None:
        is_written = await self._ledger.until_written(WRITTEN_WITHIN_S)
        if is_written and self._folder is folder:
            self._remove()

    def _remove(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            remove_soon(folder)
