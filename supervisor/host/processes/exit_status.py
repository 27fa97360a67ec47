"""How a process ended, our child or not: from wait, from the zombie, or from its pidfd after it was reaped."""

import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

PIDFD_GET_INFO = 0xC040FF0B  # _IOWR(0xFF, 11, 64 bytes): linux/pidfd.h, `struct pidfd_info` in its first version
PIDFD_INFO_EXIT = 1 << 3  # asks for the exit status, and says that it is there (Linux 6.15 and later)
_INFO = struct.Struct("=QQ11Ii")  # mask, cgroup, eleven ids, exit status


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: `code` or `signal`; both None where the kernel does not say."""

    code: int | None
    signal: int | None


def of(pidfd: int, pid: int, start_time: int) -> Exit | None:
    """How the dead process behind `pidfd` ended, reaping it if it is our child.

    None: not known (yet). A process that is not our child says it as a zombie, if we may look, and once it is reaped
    by whoever has to.
    """
    try:
        info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return of_reaped(pidfd) or of_zombie(pid, start_time)
    if info is None:
        return None
    return Exit(info.si_status, None) if info.si_code == os.CLD_EXITED else Exit(None, info.si_status)


def of_reaped(pidfd: int) -> Exit | None:
    """What the kernel keeps with the pidfd of a process that somebody has reaped; None if it does not."""
    request = _INFO.pack(PIDFD_INFO_EXIT, 0, *([0] * 11), 0)
    try:
        answer = _INFO.unpack(fcntl.ioctl(pidfd, PIDFD_GET_INFO, request))
    except OSError:  # an older kernel
        return None
    return _decoded(answer[-1]) if answer[0] & PIDFD_INFO_EXIT else None


def of_zombie(pid: int, start_time: int) -> Exit | None:
    """What /proc says of a process that nobody has reaped yet; None if it is no zombie, or another one by now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()  # from field 3 on
    if fields[0] not in (b"Z", b"X") or int(fields[19]) != start_time:
        return None
    return _decoded(int(fields[49]))  # field 52, as wait would give it


def _decoded(status: int) -> Exit:
    code = os.waitstatus_to_exitcode(status)
    return Exit(code, None) if code >= 0 else Exit(None, -code)
