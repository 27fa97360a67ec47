"""Reads what the kernel says about a process: when it started, whether it is a zombie, and how it ended."""

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4): a new one at every boot; containers get one of their own
PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes): linux/pidfd.h, `struct pidfd_info` in its first version
PIDFD_INFO_EXIT = 1 << 3  # asks for the exit status, and says that it is there (Linux 6.15 and later)
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit status

# Indexes into the fields of /proc/PID/stat, which proc(5) numbers from 1; the first two are left out here.
_STATE, _FLAGS, _START_TIME, _EXIT_CODE = 3 - 3, 9 - 3, 22 - 3, 52 - 3
_PF_KTHREAD = 0x0020_0000  # <linux/sched.h>, in the flags: a thread of the kernel


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


def has_memory(pid: int) -> bool:
    """Whether a process has memory of its own, as all but zombies and threads of the kernel. Raises OSError."""
    fields = _stat_fields(pid)
    return fields[_STATE] not in (b"Z", b"X") and not int(fields[_FLAGS]) & _PF_KTHREAD


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
