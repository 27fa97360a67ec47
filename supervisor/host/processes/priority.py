"""How a process group shares processors and disks: as the last of all, or as everybody; only what can be undone."""

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


def yield_to_all(group: int) -> None:
    """Every process of the group, which leads a session, gets what nobody else wants; one that is gone is left alone.

    Where the kernel groups processes by session (sched(7), autogroup), `nice` counts among those of one session only,
    and it is the session that yields. A plain user can't take `nice` back: it is left as it is there.
    """
    _set(group, 19, IOPRIO_IDLE)


def as_everybody(group: int) -> bool:
    """Takes that back; False if the kernel says to ask again: it hears plain users ten times a second, all together."""
    return _set(group, 0, IOPRIO_NONE)


def _set(group: int, nice: int, io: int) -> bool:
    if _may_take_back():
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PGRP, group, nice)
    if _IOPRIO_SET is not None:
        _libc.syscall(_IOPRIO_SET, IOPRIO_WHO_PGRP, group, io)
    try:
        Path(f"/proc/{group}/autogroup").write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _may_take_back() -> bool:
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20:
        return True
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(effective >> CAP_SYS_NICE & 1)
