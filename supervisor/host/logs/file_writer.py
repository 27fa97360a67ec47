"""One log file and the thread that alone touches its disk, so that a disk that hangs holds up no other file."""

import threading
import time
from collections.abc import Callable
from itertools import groupby

from supervisor.host.logs.file import LogFile

FULL_BYTES = 256 * 1024  # waiting to be written: the program's pipe is not read until it is less
HELD_BYTES = 1024 * 1024  # kept for a disk that hangs; what is printed beyond it is dropped, so that programs go on
REST_S = 10.0  # without anything to write the thread ends: programs are silent for long, and there may be thousands
STUCK_S = 10.0  # a busy disk may take seconds for one write

Act = Callable[[LogFile], None]
"""Something to do with the file, in its thread. Must not raise."""


class LogFileWriter:
    """Takes pieces and acts from one thread and does them, in their order, in its own: there is one while it has work.

    Lives until `release`; `hold` prolongs that. `ring` is called, from the writer's thread, whenever the other should
    look again: after its end, when `trouble` has changed, and after each piece while `watched` is set.
    """

    def __init__(self, file: LogFile, ring: Callable[[], None]) -> None:
        self.watched = False
        self.has_ended = False
        self._file = file
        self._trouble = self._told = ""
        self._ring = ring
        self._changed = threading.Condition()
        self._tasks: list[bytes | Act] = []
        self._backlog = 0  # bytes in `_tasks` and in the write under way
        self._lost = 0
        self._busy_since: float | None = None
        self._is_held = True
        self._has_thread = False

    @property
    def is_idle(self) -> bool:
        """Whether all that was given to it is done."""
        with self._changed:
            return self._busy_since is None and not self._tasks

    @property
    def is_stuck(self) -> bool:
        """Whether the disk has not answered for long."""
        since = self._busy_since
        return since is not None and time.monotonic() - since > STUCK_S

    @property
    def is_full(self) -> bool:
        """Whether pipes should wait: the disk is slower than what is printed, but it works."""
        return self._backlog >= FULL_BYTES and not self.is_stuck

    @property
    def trouble(self) -> str:
        """Why the file can't be written at present; empty if it can."""
        if not self.is_stuck:
            return self._trouble
        return (
            f"cannot write {self._file.path}: its disk has not answered for more than {STUCK_S:g} s; of what its "
            f"program prints, what does not fit into memory is dropped"
        )

    def hold(self, maxbytes: int, backups: int) -> bool:
        """One more pipe leads here, with these limits; False if this has ended already."""
        with self._changed:
            if self.has_ended:
                return False
            self._is_held = True
            self._file.maxbytes, self._file.backups = maxbytes, backups
        self.act(lambda file: file.write(b""))  # so that it exists for those who look for it
        return True

    def release(self) -> None:
        """No pipe leads here any more: this ends once everything is written."""
        with self._changed:
            self._is_held = False
            self._wake()

    def put(self, data: bytes) -> None:
        """Has a piece written; drops it if the disk hangs and too much waits already."""
        with self._changed:
            if self._backlog >= HELD_BYTES and self.is_stuck:
                self._lost += len(data)
                return
            self._tasks.append(data)
            self._backlog += len(data)
            self._wake()

    def act(self, act: Act) -> bool:
        """Has something done after all that was put before it; False if this has ended already."""
        with self._changed:
            if self.has_ended:
                return False
            self._tasks.append(act)
            self._wake()
            return True

    def _wake(self) -> None:
        """Has the thread look, with the lock held; there is one from now on until it has nothing to do for a while.

        Where the host has none to spare, the caller's does the work this once.
        """
        if self._has_thread:
            self._changed.notify()
            return
        try:
            threading.Thread(target=self._run, name=self._file.path.name, daemon=True).start()
            self._has_thread = True
        except RuntimeError:
            self._work()
            self._ring()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._work():
            if self.watched or self._trouble != self._told:
                self._told = self._trouble
                self._ring()
        if self.has_ended:
            self._ring()

    def _work(self) -> bool:
        """Waits for something and does it; False at the end, or if nothing came."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._tasks or self._lost or not self._is_held, REST_S):
                self._has_thread = False
                return False
            tasks, self._tasks = self._tasks, []
            size, lost, self._lost = self._backlog, self._lost, 0
            is_through = not tasks and not lost
            self._busy_since = time.monotonic()
        self._touch_disk(tasks, lost)
        if is_through:
            self._file.finish()
        with self._changed:
            self._backlog -= size
            self._busy_since, self._trouble = None, self._file.error or ""
            self.has_ended = is_through and not self._tasks and not self._is_held
        return not self.has_ended

    def _touch_disk(self, tasks: list[bytes | Act], lost: int) -> None:
        for are_pieces, group in groupby(tasks, lambda task: isinstance(task, bytes)):
            if are_pieces:
                self._file.write(b"".join(each for each in group if isinstance(each, bytes)))
                continue
            for each in group:
                if not isinstance(each, bytes):
                    each(self._file)
        if lost:
            self._file.record_loss(lost, "its disk did not answer")
