"""One log file and the thread that alone touches its disk, so that a disk that hangs holds up no other file."""

import threading
import time
from collections import deque
from collections.abc import Callable

from supervisor.host.log_file import LogFile

FULL_BYTES = 256 * 1024  # waiting to be written: the program's pipe is not read until it is less
HELD_BYTES = 1024 * 1024  # kept for a disk that hangs; what is printed beyond it is dropped, so that programs go on
STUCK_S = 10.0  # a busy disk may take seconds for one write

Act = Callable[[LogFile], None]
"""Something to do with the file, in its thread. Must not raise."""


class Writer:
    """Takes pieces and acts from one thread and does them in its own, an act after all pieces put before it.

    Lives until `release`; `hold` prolongs that. `ring` is called, from the writer's thread, whenever the other should
    look again: after its end, when `trouble` has changed, and after each piece while `watched` is set.
    """

    def __init__(self, file: LogFile, ring: Callable[[], None]) -> None:
        self.watched = False
        self.has_ended = False
        self._file = file
        self._trouble = ""
        self._ring = ring
        self._changed = threading.Condition()
        self._pieces: deque[bytes] = deque()
        self._acts: deque[Act] = deque()
        self._backlog = 0  # bytes in `_pieces` and in the write under way
        self._lost = 0
        self._busy_since: float | None = None
        self._is_held = True
        self._thread = threading.Thread(target=self._run, name=file.path.name, daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether all that was given to it is done."""
        with self._changed:
            return self._busy_since is None and not self._pieces and not self._acts

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
        """One more pipe leads here, with these limits; False if the thread has ended already."""
        with self._changed:
            if self.has_ended:
                return False
            self._is_held = True
            self._file.maxbytes, self._file.backups = maxbytes, backups
        self.act(lambda file: file.write(b""))  # so that it exists for those who look for it
        return True

    def release(self) -> None:
        """No pipe leads here any more: the thread ends once everything is written."""
        with self._changed:
            self._is_held = False
            self._changed.notify()

    def put(self, data: bytes) -> None:
        """Has a piece written; drops it if the disk hangs and too much waits already."""
        with self._changed:
            if self._backlog >= HELD_BYTES and self.is_stuck:
                self._lost += len(data)
                return
            self._pieces.append(data)
            self._backlog += len(data)
            self._changed.notify()

    def act(self, act: Act) -> bool:
        """Has something done after all that was put before it; False if the thread has ended already."""
        with self._changed:
            if self.has_ended:
                return False
            self._acts.append(act)
            self._changed.notify()
            return True

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        told = ""
        while self._work():
            if self.watched or self._trouble != told:
                told = self._trouble
                self._ring()
        self._ring()

    def _work(self) -> bool:
        """Waits for something and does it; False at the end."""
        with self._changed:
            while not self._pieces and not self._acts and not self._lost and self._is_held:
                self._changed.wait()
            is_last = not self._pieces and not self._acts and not self._lost
            acts, self._acts = self._acts, deque()
            data, lost = b"".join(self._pieces), self._lost
            self._pieces.clear()
            self._lost, self._busy_since = 0, time.monotonic()
        self._touch_disk(data, lost, acts, is_last)
        with self._changed:
            self._backlog -= len(data)
            self._busy_since, self._trouble = None, self._file.trouble or ""
            if is_last and not self._is_held and not self._acts:
                self.has_ended = True
        return not self.has_ended

    def _touch_disk(self, data: bytes, lost: int, acts: deque[Act], is_last: bool) -> None:
        if data:
            self._file.write(data)
        if lost:
            self._file.lose(lost, "its disk did not answer")
        for act in acts:
            act(self._file)
        if is_last:
            self._file.finish()
