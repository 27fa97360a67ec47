"""The daemon's hold of the file in memory into which a worker copies its state: it stays as long as this is open.

The worker says which descriptor it has in /proc. It may say anything, and a daemon that runs as root can open more than
the worker could: so the file is looked at, without opening it, before it is opened, and has to be memory of the
job's own user. What is not on the kernel's mount of such memory is not even looked at, as another file system may not
answer; a name proves nothing, since a file of any name may lie on a mount that was detached. What is in the file is
read by a process of that user alone.

A daemon that comes later, and can't ask the worker, finds the file by the name that workers give it (`find`).

The file has no holes, and its size is sealed: whoever reads a hole takes memory for it, which would count for the
reader and not for the job, whose own is limited.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import islice
from typing import Self

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.host.user_folders.mounted_over import mount_of
from supervisor.protocol.memory_tier.layout import FILE_NAME

NAME = "/memfd:"  # how the kernel names all files of memfd_create(2)
MOST_NAMED = 8  # of a process: a worker has one, and two while a larger one takes its place
MOST_LOOKED_AT = 1 << 16  # descriptors of a process, which take a second; a user may have a million for next to nothing
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_BLOCK_BYTES = 512  # of st_blocks
_closing = BlockingCalls()


class HeldMemory:
    """An open file in memory. `size_bytes`: what it takes; `owner`: the uid of the job's user."""

    def __init__(self, pid: int, descriptor: int, owner: int | None) -> None:
        """Opens what the process has open there. `owner`: the uid of the job's user, None: the daemon's own.

        Raises OSError if it can't be opened, is something else than memory of that user, or could cost the reader.
        """
        place = f"/proc/{pid}/fd/{descriptor}"
        if not os.readlink(place).startswith(NAME):  # noqa: PTH115 - the name is all that is asked for
            raise _refusal(place)
        seen = os.open(place, os.O_PATH | os.O_CLOEXEC)
        try:
            device, mount = _place_of_memory()
            if mount_of(seen) != mount:
                raise _refusal(place)
            status = os.fstat(seen)
            if not _is_memory_of(status, device, os.geteuid() if owner is None else owner):
                raise _refusal(place)
            # O_NONBLOCK: its user may have a lease on it (fcntl(2)), for whose end opening it would wait
            self.descriptor = os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        finally:
            os.close(seen)
        self.owner = status.st_uid
        try:
            self.size_bytes = require_own_pages(self.descriptor)
        except OSError:
            os.close(self.descriptor)
            raise

    @classmethod
    def of_descriptor(cls, descriptor: int, owner: int, size_bytes: int) -> Self:
        """What this process had open before it was executed anew."""
        held = cls.__new__(cls)
        held.descriptor, held.owner, held.size_bytes = descriptor, owner, size_bytes
        return held

    @classmethod
    def find(cls, pids: Iterable[int], owner: int | None) -> Self | None:
        """What processes have open under the name that workers give it; None if there is none. Looks at all of their
        descriptors.

        Of several the oldest: a larger one takes its place only once it holds a copy. Raises OSError if there is none,
        but a process could not be looked at, or what it has of that name can't be held.
        """
        oldest: Self | None = None
        refusal: OSError | None = None
        for pid in pids:
            try:
                for descriptor in _named_descriptors(pid):
                    held = cls(pid, descriptor, owner)
                    oldest, younger = (held, oldest) if oldest is None or held._is_before(oldest) else (oldest, held)
                    if younger is not None:
                        younger.close()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it is gone, or has closed it
            except OSError as error:
                refusal = refusal or error
        if refusal is not None and oldest is None:
            raise refusal
        return oldest

    def _is_before(self, other: Self) -> bool:
        return os.fstat(self.descriptor).st_ctime_ns < os.fstat(other.descriptor).st_ctime_ns

    def duplicate(self) -> "HeldMemory":
        """The same memory for another thread, which lets go of it itself. Raises OSError."""
        other = copy(self)
        other.descriptor = os.dup(self.descriptor)
        return other

    def close(self) -> None:
        """Lets go of it. A second call does nothing.

        Once its worker is gone, whoever closes it last waits until the kernel has freed all of it, some 0.2 s for a
        gigabyte. So a thread closes it: the event loop has no time for that.
        """
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        try:
            _closing.submit(None, os.close, descriptor)
        except RuntimeError:  # the host has no thread to spare
            os.close(descriptor)


def _named_descriptors(pid: int) -> Iterator[int]:
    """The first MOST_NAMED of a process that have the name that workers give the file, of the first MOST_LOOKED_AT.

    Raises OSError.
    """
    named = 0
    with os.scandir(f"/proc/{pid}/fd") as descriptors:
        for entry in islice(descriptors, MOST_LOOKED_AT):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if os.readlink(entry.path).startswith(f"{NAME}{FILE_NAME} "):  # noqa: PTH115 - as above
                    yield int(entry.name)
                    named += 1
                    if named == MOST_NAMED:
                        return


def require_own_pages(descriptor: int) -> int:
    """The size of a file in memory all of which was taken by who made it. Raises OSError for another."""
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS != SEALS:
        raise OSError(errno.EPERM, "its size is not sealed (F_SEAL_SHRINK and F_SEAL_GROW)")
    status = os.fstat(descriptor)
    if status.st_blocks * _BLOCK_BYTES < status.st_size:
        raise OSError(errno.EPERM, "it has holes, for which whoever reads it would take memory; write all of it")
    return status.st_size


def _refusal(place: str) -> OSError:
    return OSError(errno.EPERM, "not a file in memory of the job's user", place)


def _is_memory_of(status: os.stat_result, device: int, user: int) -> bool:
    is_memory = stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev == device
    return is_memory and status.st_uid == user


def _place_of_memory() -> tuple[int, str | None]:
    """Device number and mount of all files that memfd_create(2) makes: they lie on one mount of the kernel's own."""
    descriptor = os.memfd_create("stepkeeper-probe", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev, mount_of(descriptor)
    finally:
        os.close(descriptor)
