"""Turns the process into a daemon: another user, no terminal, and a parent that waits until it is known to work."""

import contextlib
import os
import sys

from supervisor.host.processes.credentials import Credentials

READY = b"\0"  # an exit status, as one byte


class Foreground:
    """Stands in where the process stays in the foreground: nobody waits for the word that it is ready."""

    def report_ready(self) -> None:
        """Nobody to tell."""

    def report_failure(self, status: int) -> None:
        """Nobody to tell."""


class Background:
    """The detached process's end of the pipe on which its parent waits."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def report_ready(self) -> None:
        """Lets the parent exit with status 0, and gives up standard output and error."""
        os.write(self._pipe, READY)
        os.close(self._pipe)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)

    def report_failure(self, status: int) -> None:
        """Has the parent exit with `status`, if it still waits."""
        with contextlib.suppress(OSError):  # it was told that all is well, long ago
            os.write(self._pipe, bytes([status]))


def open_standard_descriptors() -> None:
    """Opens the null device for those of 0, 1 and 2 that whoever started us has closed.

    Else the next files we open would have these numbers, and be lost where standard input, output and error are given
    up, or written into by whoever means those.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - Python found it closed


def detach() -> Background:
    """Forks twice into a new session; returns in the daemon only.

    The first process waits and exits with 0 once the daemon calls `ready`, with the status it gives to `failed`, or
    with 1 if it dies before; until then errors still reach the terminal.
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
    """Gives up being root for good. Raises OSError."""
    os.setgroups(user.groups)
    os.setgid(user.gid)
    os.setuid(user.uid)
