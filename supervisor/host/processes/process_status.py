"""Reads what the kernel says about a process: when it started, whether it is a zombie, and how it ended."""

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from supervisor.host.blocking_calls import BlockingCalls

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4): a new one at every boot; containers get one of their own
PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes): linux/pidfd.h, `struct pidfd_info` in its first version
PIDFD_INFO_EXIT = 1 << 3  # asks for the exit status, and says that it is there (Linux 6.15 and later)
EXECVE_LIMIT_S = 1.0  # how long it is waited for processes in the middle of execve(2), which a slow disk can delay
AGAIN_S = 0.01  # between two looks at them
ENVIRONMENT_LIMIT_S = 5.0  # the kernel answers in microseconds, on a host that swaps heavily later
PROGRESS_EVERY_S = 0.2
LOOP_LIMIT_S = 0.5  # the same in the thread of the event loop, where all programs wait for it
NOT_AGAIN_S = 10.0  # a user whose process did not answer is not waited for again, also if it has answered meanwhile
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit status

# Indexes into the fields of /proc/PID/stat, which proc(5) numbers from 1; the first two are left out here.
_STATE, _FLAGS, _START_TIME, _EXIT_CODE = 3 - 3, 9 - 3, 22 - 3, 52 - 3
_PF_KTHREAD = 0x0020_0000  # <linux/sched.h>, in the flags: a thread of the kernel

T = TypeVar("T")


class InExecve(Exception):
    """The process is replacing its program now, and has neither environment nor arguments for a moment."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: `code` or `signal`; both are None where the kernel does not say."""

    code: int | None
    signal: int | None


def read_boot_id() -> str | None:
    """The id of the present boot of the host; None where the kernel has none."""
    try:
        return BOOT_ID.read_text().strip() or None
    except OSError:
        return None


def read_start_time(pid: int) -> int | None:
    """When the process started (kernel ticks after boot); None if there is no such process.

    Pids are used again, so a process is identified by its pid and start time together. 0 means that this process may
    not look (proc(5), hidepid): the other one belongs to somebody else, or became another user.
    """
    try:
        return int(_stat_fields(pid)[_START_TIME])
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return 0


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


_reads = BlockingCalls()
_thread = threading.local()
"""`reads_itself`: it may hang; `hanging`: how many threads that read for it do so."""
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
        return _read_environment(pid)
    if _unanswered and _is_avoided(_real_uid(pid)):
        raise TimeoutError(errno.ETIMEDOUT, "another process of its user did not answer")
    if getattr(_thread, "reads_itself", False):
        return _read_environment(pid)
    hanging: int = getattr(_thread, "hanging", 0)
    try:  # in a thread of the caller's own: a read that hangs delays nobody else
        read = _reads.submit_for_folder(Path(f"{threading.get_ident()}.{hanging}"), partial(_read_environment, pid))
    except RuntimeError:  # the host has no thread to spare
        return _read_environment(pid)
    try:
        return read.result(limit_s)
    except TimeoutError:
        if not read.done():
            _thread.hanging = hanging + 1
            _avoid(pid, read.done)
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


def _read_environment(pid: int) -> bytes:
    folder = Path(f"/proc/{pid}")
    environment = (folder / "environ").read_bytes()
    if environment:
        return environment
    if (folder / "cmdline").read_bytes():  # execve(2) is over, if there was one
        return (folder / "environ").read_bytes()
    fields = _stat_fields(pid)
    if fields[_STATE] in b"ZX" or int(fields[_FLAGS]) & _PF_KTHREAD:
        return b""
    raise InExecve


def exit_of(pidfd: int, pid: int, start_time: int) -> Exit | None:
    """How the dead process behind `pidfd` ended; reaps it if it is our child. None if that is not known (yet).

    A process that is not our child shows its exit status while it is a zombie, if we may look. Newer kernels also keep
    it with the pidfd after somebody else has reaped the process.
    """
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return _exit_of_reaped(pidfd) or exit_of_zombie(pid, start_time)
    if info is None:
        return None
    return Exit(info.si_status, None) if info.si_code == os.CLD_EXITED else Exit(None, info.si_status)


def exit_of_zombie(pid: int, start_time: int) -> Exit | None:
    """How a process ended that nobody has reaped yet; None if it is not a zombie, or the pid belongs to another one."""
    try:
        fields = _stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    if fields[_STATE] not in (b"Z", b"X") or int(fields[_START_TIME]) != start_time:
        return None
    return _decode_wait_status(int(fields[_EXIT_CODE]))


def _exit_of_reaped(pidfd: int) -> Exit | None:
    """The exit status that the kernel keeps with the pidfd of a reaped process; None if it keeps none."""
    request = _INFO.pack(PIDFD_INFO_EXIT, 0, *([0] * 11), 0)
    try:
        answer = _INFO.unpack(fcntl.ioctl(pidfd, PIDFD_GET_INFO, request))
    except OSError:  # an older kernel
        return None
    return _decode_wait_status(answer[-1]) if answer[0] & PIDFD_INFO_EXIT else None


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat from the third on; the name before them may hold blanks and brackets."""
    stat = Path(f"/proc/{pid}/stat").read_bytes()
    return stat[stat.rindex(b")") + 2 :].split()


def _decode_wait_status(status: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    return Exit(code, None) if code >= 0 else Exit(None, -code)
