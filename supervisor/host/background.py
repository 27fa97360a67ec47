"""Turns the process into a daemon: another user, no terminal, and a parent that waits until it is known to work."""

import os
import sys

from supervisor.host.spawning import Credentials

READY = b"0"


class Foreground:
    """Stands in where the process stays in the foreground: nobody waits for the word that it is ready."""

    def ready(self) -> None:
        """Nobody to tell."""


class Background:
    """The detached process's end of the pipe on which its parent waits."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def ready(self) -> None:
        """Lets the parent exit with status 0, and gives up standard output and error."""
        os.write(self._pipe, READY)
        os.close(self._pipe)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)


def detach() -> Background:
    """Forks twice into a new session; returns in the daemon only.

    The first process waits and exits with 0 once the daemon calls `ready`, or with 1 if it dies before; until then
    errors still reach the terminal.
    """
    read_end, write_end = os.pipe()
    if os.fork() > 0:
        os.close(write_end)
        sys.exit(0 if os.read(read_end, 1) == READY else 1)
    os.close(read_end)
    os.setsid()
    if os.fork() > 0:
        os._exit(0)
    return Background(write_end)


def become(user: Credentials) -> None:
    """Gives up being root for good. Raises OSError."""
    os.setgroups(user.groups)
    os.setgid(user.gid)
    os.setuid(user.uid)
