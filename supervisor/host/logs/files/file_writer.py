"""Writes one log file in a thread of its own, so that a disk that hangs holds up no other file."""

import threading
import time
from collections.abc import Callable
from itertools import groupby

from supervisor.host.logs.files.file import OutputFile

FULL_BYTES = 256 * 1024  # unwritten: the pipes are not read until it is less, so programs wait
HELD_BYTES = 1024 * 1024  # for a disk that hangs; what exceeds it is dropped, so that programs go on
IDLE_THREAD_S = 10.0  # the thread ends after that: there may be thousands of programs, most of them silent
STUCK_S = 10.0  # a busy disk may take seconds for one write

FileAction = Callable[[OutputFile], None]
"""Something to do with the file, in its thread. Must not raise."""


class LogFileWriter:
    """Gets pieces and actions from its owner's thread and does them, in their order, in its own while there are any.

    Lives until `release`; `use` prolongs that. `wake_owner` is called from the writer's thread when it has ended, when
    `failure` has changed, and after each write while `is_watched` is set.
    """

    def __init__(self, file: OutputFile, wake_owner: Callable[[], None], idle_thread_s: float = IDLE_THREAD_S) -> None:
        self._idle_thread_s = idle_thread_s
        self.is_watched = False
        self.has_ended = False
        self._file = file
        self._failure = self._reported = ""
        self._wake_owner = wake_owner
        self._changed = threading.Condition()
        self._tasks: list[bytes | FileAction] = []
        self._backlog_bytes = 0  # bytes in `_tasks` and in the write under way
        self._dropped_bytes = 0
        self._busy_since: float | None = None
        self._is_used = True
        self._has_thread = False

    @property
    def is_idle(self) -> bool:
        """Whether everything is done."""
        with self._changed:
            return self._busy_since is None and not self._tasks

    @property
    def is_stuck(self) -> bool:
        """Whether the disk has not answered for long."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > STUCK_S

    @property
    def is_full(self) -> bool:
        """Whether pipes should wait: the disk works, but is slower than the output."""
        return self._backlog_bytes >= FULL_BYTES and not self.is_stuck

    @property
    def failure(self) -> str:
        """Why the file can't be written at present; empty if it can."""
        if not self.is_stuck:
            return self._failure
        return (
            f"cannot write {self._file.path}: its disk has not answered for more than {STUCK_S:g} s; output that does "
            f"not fit into memory is dropped"
        )

    def use(self, maxbytes: int, backups: int, uid: int = 0, compress: bool = False) -> bool:
        """One more pipe leads here, with these limits, of a program of this uid; False if the writer has ended."""
        with self._changed:
            if self.has_ended:
                return False
            self._is_used = True
            self._file.maxbytes, self._file.backups, self._file.compress = maxbytes, backups, compress
            self._file.users |= {uid}
        self.run_on_file(lambda file: file.write(b""))  # so that the file exists
        return True

    def release(self) -> None:
        """No pipe leads here any more: ends once everything is written."""
        with self._changed:
            self._is_used = False
            self._wake_thread()

    def write(self, data: bytes) -> None:
        """Queues a piece; drops it if the disk hangs and the memory for it is full."""
        with self._changed:
            if self._backlog_bytes >= HELD_BYTES and self.is_stuck:
                self._dropped_bytes += len(data)
                return
            self._tasks.append(data)
            self._backlog_bytes += len(data)
            self._wake_thread()

    def run_on_file(self, action: FileAction) -> bool:
        """Queues an action behind what was queued before; False if the writer has ended already."""
        with self._changed:
            if self.has_ended:
                return False
            self._tasks.append(action)
            self._wake_thread()
            return True

    def _wake_thread(self) -> None:
        """Wakes the thread, or starts it; called with the lock held.

        If the host has no thread to spare, the caller's thread does the work this once.
        """
        if self._has_thread:
            self._changed.notify()
            return
        try:
            threading.Thread(target=self._run, name=self._file.path.name, daemon=True).start()
            self._has_thread = True
        except RuntimeError:
            self._do_tasks()
            self._wake_owner()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._do_tasks():
            if self.is_watched or self._failure != self._reported:
                self._reported = self._failure
                self._wake_owner()
        if self.has_ended:
            self._wake_owner()

    def _do_tasks(self) -> bool:
        """Waits for tasks and does them; False at the end, or if none came."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._tasks or self._dropped_bytes or not self._is_used, self._idle_thread_s
            ):
                self._has_thread = False
                return False
            tasks, self._tasks = self._tasks, []
            size, lost, self._dropped_bytes = self._backlog_bytes, self._dropped_bytes, 0
            is_through = not tasks and not lost
            self._busy_since = time.monotonic()
        self._touch_disk(tasks, lost)
        if is_through:
            self._file.finish()
        with self._changed:
            self._backlog_bytes -= size
            self._busy_since, self._failure = None, self._file.error or ""
            self.has_ended = is_through and not self._tasks and not self._is_used
        return not self.has_ended

    def _touch_disk(self, tasks: list[bytes | FileAction], lost: int) -> None:
        for are_pieces, group in groupby(tasks, lambda task: isinstance(task, bytes)):
            if are_pieces:
                self._file.write(b"".join(piece for piece in group if isinstance(piece, bytes)))
                continue
            for action in group:
                if not isinstance(action, bytes):
                    action(self._file)
        if lost:
            self._file.record_loss(lost, "its disk did not answer")
