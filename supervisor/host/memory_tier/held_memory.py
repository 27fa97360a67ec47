"""The daemon's hold of the file in memory into which a worker copies its state: it stays as long as this is open.

The worker says which descriptor it has in /proc. It may say anything, and a daemon that runs as root can open more than
the worker could: so the file is looked at, without opening it, before it is opened, and has to be memory of the
job's own user. What is in it is read by a process of that user alone.
"""

import errno
import os
import stat
from copy import copy


class HeldMemory:
    """An open file in memory. `size_bytes`: what it takes; `owner`: the uid of the job's user."""

    def __init__(self, pid: int, descriptor: int, owner: int | None) -> None:
        """Opens what the process has open there. `owner`: the uid of the job's user, None: the daemon's own.

        Raises OSError if it can't be opened, or is something else than memory of that user.
        """
        seen = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_PATH | os.O_CLOEXEC)
        try:
            status = os.fstat(seen)
            is_memory = stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev == _device_of_memory()
            if not is_memory or status.st_uid != (os.geteuid() if owner is None else owner):
                raise OSError(errno.EPERM, "not a file in memory of the job's user", f"/proc/{pid}/fd/{descriptor}")
            self.descriptor = os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(seen)
        self.size_bytes, self.owner = status.st_size, status.st_uid

    def duplicate(self) -> "HeldMemory":
        """The same memory for another thread, which lets go of it itself. Raises OSError."""
        other = copy(self)
        other.descriptor = os.dup(self.descriptor)
        return other

    def close(self) -> None:
        """Lets go of it. A second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _device_of_memory() -> int:
    """The device number of all files that memfd_create(2) makes: they lie on one mount of the kernel's own."""
    descriptor = os.memfd_create("stepkeeper-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
