"""Sets how the kernel ranks a process against others: for processors, for disks, and when memory runs out."""

import contextlib
import ctypes
import os
import platform
import resource
from pathlib import Path

CAP_SYS_NICE = 23  # <linux/capability.h>
IOPRIO_WHO_PGRP, IOPRIO_IDLE, IOPRIO_NONE = 2, 3 << 13, 0  # <linux/ioprio.h>; the class is in the upper bits
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}.get(platform.machine())  # it has no function in the C library

_libc = ctypes.CDLL(None, use_errno=True)


def lower_priority(group: int) -> None:
    """Gives a process group that leads a session only the CPU time and disk that nobody else uses (SCHED_IDLE, nice 19,
    the idle I/O class); does nothing if it is gone.

    Where the kernel groups processes by session (sched(7), autogroup), `nice` counts only among those of one session,
    so the nice value of the session is set too. `nice` and SCHED_IDLE are left alone where we could not restore them.
    """
    _set(group, 19, IOPRIO_IDLE, os.SCHED_IDLE)


def raise_priority(group: int) -> None:
    """Gives such a group about a tenth of a busy processor: on a host without idle time it would never get anywhere."""
    _set(group, 10, IOPRIO_IDLE, os.SCHED_OTHER)


def restore_priority(group: int) -> bool:
    """Restores normal priority. False if it has to be tried again: plain users may do so ten times a second."""
    return _set(group, 0, IOPRIO_NONE, os.SCHED_OTHER)


def yield_to_others(nice: int) -> None:
    """Lets other processes go first from now on, those of other sessions too. For a process that leads a session."""
    os.nice(nice)
    with contextlib.suppress(OSError):  # a kernel without such groups
        Path("/proc/self/autogroup").write_text(str(os.nice(0)))


def _set(group: int, nice: int, io: int, policy: int) -> bool:
    if _can_restore_nice():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, group, nice)
        _set_policy(group, policy)
    if _IOPRIO_SET is not None:
        _libc.syscall(_IOPRIO_SET, IOPRIO_WHO_PGRP, group, io)
    try:
        Path(f"/proc/{group}/autogroup").write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _set_policy(pid: int, policy: int) -> None:
    """Sets the scheduling policy of all threads of a process: each has its own, and passes it on to those it starts."""
    known: set[Path] = set()
    with contextlib.suppress(OSError):
        while fresh := set(Path(f"/proc/{pid}/task").iterdir()) - known:
            for thread in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread.name), policy, os.sched_param(0))
            known |= fresh


def _can_restore_nice() -> bool:
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20:
        return True
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(effective >> CAP_SYS_NICE & 1)


def set_oom_score(pid: int, wanted: int | None) -> None:
    """Sets a new process's oom_score_adj to `wanted` (0 to 1000; higher is killed first).

    None takes away only the protection that it inherited from the daemon (OOMScoreAdjust= of its unit), so that the
    kernel kills a worker before the daemon. Children that it started in its first moments keep the inherited value.
    A process that is gone, or became another user's, is left alone.
    """
    score = Path(f"/proc/{pid}/oom_score_adj")
    with contextlib.suppress(OSError):
        if wanted is not None or int(score.read_bytes()) < 0:
            score.write_text(str(wanted or 0))


def lower_oom_score(pid: int, wanted: int | None) -> None:
    """Sets oom_score_adj of a process that was started with a higher one. None: the daemon's own, at least 0."""
    with contextlib.suppress(OSError):
        own = max(0, int(Path("/proc/self/oom_score_adj").read_bytes()))
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(own if wanted is None else wanted))
