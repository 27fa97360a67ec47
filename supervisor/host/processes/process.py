"""A process that was started or is adopted: learns of its end through its pidfd, and kills it with all that it started.

A pidfd becomes readable when its process ends, so nothing polls. The exit status is then asked for through it:
from wait(2) if the process is our child, and otherwise from what the kernel still shows (`process_status`), for a short
while again and again, as its parent may not have reaped it yet.
"""

import asyncio
import contextlib
import os
import select
import signal as signals
import threading
from collections.abc import Callable

import psutil

from supervisor.host.processes import process_status, tree
from supervisor.host.processes.process_status import Exit, read_start_time

REAPED_WITHIN_S = 2.0  # init reaps an adopted process at once; the first process of some containers never does
EXIT_POLL_S = 0.01


def adopt(pid: int, start_time: int, group_ends_with_it: bool, on_exit: Callable[[Exit], None]) -> "Process | None":
    """Adopts a process that an earlier daemon started; None if it is gone. `on_exit`: as for `process_start.spawn`.

    It may still be our child (if the daemon has executed itself anew) or not, and may already be a zombie. Its exit
    status is known where the kernel shows it. Raises OSError if nobody can tell, as without free descriptors.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    with contextlib.ExitStack() as unless_adopted:
        unless_adopted.callback(os.close, pidfd)
        if read_start_time(pid) != start_time:
            return None
        unless_adopted.pop_all()
    return Process(pid, start_time, pidfd, group_ends_with_it, on_exit)


class Process:
    """One process of a program, identified by `pid` and `start_time` together, as pids are used again.

    `start_time`: kernel ticks after boot. `exit`: how it ended, None while it runs.
    """

    __slots__ = (
        "_descendants",
        "_group_ends_with_it",
        "_killing",
        "_loop",
        "_on_exit",
        "_pidfd",
        "exit",
        "pid",
        "start_time",
    )

    def __init__(
        self, pid: int, start_time: int, pidfd: int, group_ends_with_it: bool, on_exit: Callable[[Exit], None]
    ) -> None:
        self.pid = pid
        self.start_time = start_time
        self.exit: Exit | None = None
        self._descendants: frozenset[psutil.Process] = frozenset()  # those that were seen and may still live
        self._killing: threading.Thread | None = None
        self._pidfd = pidfd
        self._group_ends_with_it = group_ends_with_it
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(pidfd, self._on_pidfd_readable)

    def reassign(self, on_exit: Callable[[Exit], None]) -> None:
        """Changes whom its end is reported to, as when a standby becomes an attempt: its group ends with it then."""
        self._on_exit, self._group_ends_with_it = on_exit, True

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, even if `on_exit` was not called yet."""
        if self.exit is not None or self._pidfd < 0:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def send_signal(self, signal: int, group: bool) -> bool:
        """Sends a signal to the process, or to its whole process group; False if it is gone already."""
        if self.exit is not None:
            return False
        try:
            if group and self._has_its_number():
                os.killpg(self.pid, signal)  # safe: its number is not used again before the leader is reaped
            else:
                signals.pidfd_send_signal(self._pidfd, signal)
        except (ProcessLookupError, PermissionError):  # gone, or running as another user
            return False
        return True

    def _has_its_number(self) -> bool:
        """Whether its pid is still its own; False also if too many files are open to look."""
        try:
            return read_start_time(self.pid) == self.start_time
        except OSError:
            return False

    def kill_tree(self) -> None:
        """Sends SIGKILL to the process and all its descendants, also those that left its process group or session.

        Before any of them is killed, all are stopped (SIGSTOP) and listed until no new one appears: once a parent is
        dead, its children can't be told from other processes. Returns at once: this reads all of /proc, in a thread.
        """
        if self._killing is None or not self._killing.is_alive():
            killing = threading.Thread(target=self._kill_tree, name="kill-tree", daemon=True)
            try:
                killing.start()
            except RuntimeError:  # the host has no thread to spare, perhaps because of these very processes
                self._kill_tree()
            else:
                self._killing = killing

    def _kill_tree(self) -> None:
        if self.exit is not None:
            self._kill_session()
            return
        victims = tree.stop_tree(self.pid, self.start_time)
        self._kill_group()
        tree.kill_all(victims)

    def note_descendants(self, most: int | None = None) -> bool:
        """Notes who descends from it, so that they can be ended with it: after its end nobody could tell.

        `most`: of them, as each takes a tenth of a millisecond; whether there were no more. Never raises, as it is to
        be asked to save next: with too many open files, those noted before stay.
        """
        with contextlib.suppress(OSError, psutil.Error):
            if not self.has_ended:
                before = self._descendants
                if most is None:
                    before = frozenset(descendant for descendant in before if descendant.is_running())
                now = tree.descendants(self.pid, self.start_time, most)
                self._descendants = before | now
                return len(now) != most
        return True

    def kill_session(self) -> int:
        """After its end, sends SIGKILL to the rest of its session and group and to the descendants that were noted.

        Returns how many processes that were. Reads all of /proc: call it from a thread. Descendants that left the
        session and were not noted are found only by `kill_tree`, which is waited for.
        """
        if self._killing is not None:
            self._killing.join()
        return self._kill_session()

    def _kill_session(self) -> int:
        left = [descendant for descendant in self._descendants if descendant.is_running()]
        return tree.kill_session(self.pid, self.start_time) + tree.kill_all(left)

    def detach(self) -> None:
        """Stops watching the process, which lives on; `on_exit` is not called any more."""
        if self._pidfd >= 0:
            self._stop_watching()

    def _on_pidfd_readable(self) -> None:
        self._loop.remove_reader(self._pidfd)  # it stays readable
        self._take_end(self._loop.time() + REAPED_WITHIN_S)

    def _take_end(self, until: float) -> None:
        """Ends the rest of its group, then asks how it ended; later, as long as this daemon has too many open files to
        look into /proc.
        """
        if self._pidfd < 0:
            return
        try:
            if self._group_ends_with_it:
                self._kill_group()
        except OSError:
            self._loop.call_later(EXIT_POLL_S, self._take_end, until)
        else:
            self._read_exit(until)

    def _kill_group(self) -> None:
        """Sends SIGKILL to its group, unless init has reaped it and its number is now used by another process."""
        if read_start_time(self.pid) in (None, self.start_time):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signals.SIGKILL)

    def _read_exit(self, until: float) -> None:
        """Asks how it ended, and again later until whoever has to reap it has done so."""
        if self._pidfd < 0:
            return
        try:
            exit_ = process_status.exit_of(self._pidfd, self.pid, self.start_time)
            is_over = exit_ is not None or self._loop.time() >= until
            if is_over and exit_ is None:  # a tracer such as gdb still holds it, a zombie even for its parent
                exit_ = process_status.exit_of_zombie(self.pid, self.start_time)
        except OSError:  # as in _take_end
            is_over = False
        if not is_over:
            self._loop.call_later(EXIT_POLL_S, self._read_exit, until)
            return
        self._stop_watching()
        self.exit = exit_ or Exit(None, None)
        self._on_exit(self.exit)

    def _stop_watching(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
