"""The environments with which processes were started, by which a daemon knows those that are its own.

The kernel reads one from the memory of the process, and so may have to wait: for the end of an execve(2), or for a lock
that a thread of the process holds on that memory, which a user can make last for ever. So everything here has limits.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from supervisor.host.blocking_calls import is_late, run_within
from supervisor.host.processes.process_status import has_memory

MAX_BYTES = 6 << 20  # execve(2) takes no more arguments and environment than that (fs/exec.c)
_PIECE_BYTES = 64 << 10
EXECVE_LIMIT_S = 1.0  # how long it is waited for processes in the middle of execve(2), which a slow disk can delay
AGAIN_S = 0.01  # between two looks at them
ENVIRONMENT_LIMIT_S = 5.0  # the kernel answers in microseconds, on a host that swaps heavily later
PROGRESS_EVERY_S = 0.2
LOOP_LIMIT_S = 0.5  # the same in the thread of the event loop, where all programs wait for it
NOT_AGAIN_S = 10.0  # a user whose process did not answer is not waited for again, also if it has answered meanwhile

T = TypeVar("T")


class InExecve(Exception):
    """The process is replacing its program now, and has neither environment nor arguments for a moment."""


def look_at_all(pids: Iterable[int], look: Callable[[int], T], until: float | None = None) -> Iterator[T]:
    """What `look` gives for each process; where it raises InExecve, once that is over, else nothing.

    May wait until `until` (monotonic; by default EXECVE_LIMIT_S from now): call it from a thread.
    """
    if until is None:
        until = time.monotonic() + EXECVE_LIMIT_S
    waiting: Sequence[int] = list(pids)
    while waiting:
        in_execve: list[int] = []
        while waiting:
            looks = _Looks(waiting, look)
            waiting = looks.carry_out()
            yield from looks.seen
            in_execve += looks.in_execve
        waiting = in_execve if time.monotonic() < until else []
        if waiting:
            time.sleep(AGAIN_S)


class _Looks(Generic[T]):
    """Looks at processes, one after the other; as root in a thread, so that one that does not answer is given up."""

    def __init__(self, pids: Sequence[int], look: Callable[[int], T]) -> None:
        self._pids = pids
        self._look = look
        self._count = 0  # of those that were looked at
        self._is_given_up = False
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self.seen: list[T] = []
        self.in_execve: list[int] = []

    def carry_out(self) -> Sequence[int]:
        """Fills `seen` and `in_execve`; gives the processes that are left, if one before them does not answer."""
        if os.geteuid() != 0:
            self._run()
            return ()
        thread = threading.Thread(target=self._run_in_thread, name="looking", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the host has no thread to spare
            self._run()
            return ()
        count, since = 0, time.monotonic()
        while not self._is_over.wait(PROGRESS_EVERY_S):
            if self._count != count:
                count, since = self._count, time.monotonic()
            elif time.monotonic() - since > ENVIRONMENT_LIMIT_S:
                self._is_given_up = True
                _avoid(self._pids[count], self._is_over.is_set)
                return self._pids[count + 1 :]
        if self._error is not None:
            raise self._error
        return ()

    def _run_in_thread(self) -> None:
        _thread.reads_itself = True
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001 - it is raised where this is waited for
            self._error = error
        self._is_over.set()

    def _run(self) -> None:
        for pid in self._pids:
            try:
                seen = self._look(pid)
            except InExecve:
                self.in_execve.append(pid)
            else:
                if self._is_given_up:
                    return
                self.seen.append(seen)
            self._count += 1


_thread = threading.local()
"""`reads_itself`: it may hang."""
_unanswered: dict[int, tuple[Callable[[], bool], float]] = {}
"""By real uid: whether a process of that user's that did not answer has done so, and until when none is asked."""


def read_environment(pid: int, limit_s: float = ENVIRONMENT_LIMIT_S) -> bytes:
    """The environment that the process's program was started with, each variable with a zero byte behind it.

    Empty for a zombie. Raises InExecve in the middle of execve(2), which may take long on a slow disk: a look at all of
    /proc would miss the process, so look again (`look_at_all`). Raises OSError if there is no such process, or it
    belongs to another user.

    The kernel reads it from the process's memory, for which it waits as long as a thread of the process holds a lock on
    that; on a file system of the user's (FUSE), for ever. So for root a thread reads it, and TimeoutError is raised
    after `limit_s`. Until the read ends, and for NOT_AGAIN_S, processes of the same user are not waited for again.
    """
    if os.geteuid() != 0:
        return _read(pid)
    if _unanswered and _is_avoided(_real_uid(pid)):
        raise TimeoutError(errno.ETIMEDOUT, "another process of its user did not answer")
    if getattr(_thread, "reads_itself", False):
        return _read(pid)
    key = "environment", pid
    try:
        return run_within(limit_s, key, partial(_read, pid))
    except TimeoutError:
        if is_late(key):
            _avoid(pid, lambda: not is_late(key))
        raise TimeoutError(errno.ETIMEDOUT, f"process {pid} does not answer") from None


def _avoid(pid: int, has_answered: Callable[[], bool]) -> None:
    """Asks no process of the user of this one, which does not answer, for a while. Root harms nobody on purpose."""
    if (user := _real_uid(pid)) != 0:
        _unanswered[user] = has_answered, time.monotonic() + NOT_AGAIN_S


def _is_avoided(user: int) -> bool:
    has_answered, until = _unanswered.get(user, (lambda: True, 0.0))
    return not has_answered() or time.monotonic() < until


def _real_uid(pid: int) -> int:
    """Who started a process; 0 if that can't be told."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"Uid:"):
                return int(line.split()[1])
    return 0


def _read(pid: int) -> bytes:
    environment = read_beginning(pid, "environ")
    if environment:
        return environment
    if read_beginning(pid, "cmdline"):  # execve(2) is over, if there was one
        return read_beginning(pid, "environ")
    if has_memory(pid):
        raise InExecve
    return b""


def read_beginning(pid: int, name: str) -> bytes:
    """The first MAX_BYTES of a file of a process in /proc. Raises OSError.

    A process can say of its environment and its arguments that they are terabytes of its memory (prctl(2), PR_SET_MM).
    """
    content = bytearray()
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - of every process on the host
        while len(content) < MAX_BYTES and (piece := file.read(_PIECE_BYTES)):
            content += piece
    return bytes(content)
