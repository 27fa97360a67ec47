"""Puts the process into the background, as another user, while its parent waits until the daemon is ready."""

import contextlib
import os
import sys

from supervisor.host.processes.credentials import Credentials

READY = b"\0"  # an exit status, as one byte


class Foreground:
    """Takes the place of Background in the foreground, where no parent waits."""

    def report_ready(self) -> None:
        """Does nothing."""

    def report_failure(self, status: int) -> None:
        """Does nothing."""


class Background:
    """The daemon's end of the pipe on which the parent waits. `pipe`: a descriptor.

    `announcement`: printed once the daemon is ready.
    """

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self.announcement = ""

    def report_ready(self) -> None:
        """Makes the parent exit with status 0, and replaces standard input, output and error by /dev/null."""
        with contextlib.suppress(OSError):  # nobody may read it
            os.write(1, self.announcement.encode(errors="replace"))
        os.write(self._pipe, READY)
        os.close(self._pipe)
        discard(0, 1, 2)

    def report_failure(self, status: int) -> None:
        """Makes the parent exit with `status`, if it still waits."""
        with contextlib.suppress(OSError):  # the daemon was ready, so the pipe is closed
            os.write(self._pipe, bytes([status]))


def discard(*descriptors: int) -> None:
    """Replaces these by /dev/null."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    os.close(null)


def open_standard_descriptors() -> None:
    """Opens /dev/null for those of the descriptors 0, 1 and 2 that were closed when this process was started.

    Otherwise the next files that we open would get these numbers, be closed when the daemon goes into the background,
    or be written to as standard output or error.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - Python found it closed


def detach() -> Background:
    """Forks twice into a new session; returns only in the daemon.

    The first process waits. It exits with 0 once the daemon calls `report_ready`, with the status that the daemon gives
    to `report_failure`, or with 1 if the daemon dies before that. Until then errors still reach the terminal.
    """
    read_end, write_end = os.pipe()
    if os.fork() > 0:
        os.close(write_end)
        sys.exit((os.read(read_end, 1) or b"\1")[0])
    os.close(read_end)
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    return Background(write_end)


def drop_privileges(user: Credentials) -> None:
    """Becomes this user for good. Raises OSError."""
    os.setgroups(user.groups)
    os.setgid(user.gid)
    os.setuid(user.uid)
