"""The daemon that this process belongs to: whether that very process runs.

A pidfd says so also where /proc hides the processes of others (proc(5), hidepid), as from a job of another user.
"""

import os
import select
from pathlib import Path

from supervisor.protocol.wire.launch import DaemonIdentity


def open_pidfd(daemon: DaemonIdentity) -> int | None:
    """A pidfd of the daemon, which has not ended, or just now; None if it is gone. Raises OSError."""
    try:
        descriptor = os.pidfd_open(daemon.pid)
    except ProcessLookupError:
        return None
    if _start_time(daemon.pid) in (None, daemon.start_time):
        return descriptor
    os.close(descriptor)
    return None


def wait_for_end(daemon: DaemonIdentity, limit_ms: int | None = None) -> bool:
    """Waits until the daemon has ended; False if it has not after `limit_ms` (None: there is no limit)."""
    descriptor = open_pidfd(daemon)
    if descriptor is None:
        return True
    try:
        ended = select.poll()  # select(2) takes no descriptor from 1024 on, and a loop may have opened many
        ended.register(descriptor, select.POLLIN)
        return bool(ended.poll(limit_ms))
    finally:
        os.close(descriptor)


def _start_time(pid: int) -> int | None:
    """When the process of that number began; None if it is gone, or may not be looked at."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat[stat.rindex(b")") + 2 :].split()[19])
