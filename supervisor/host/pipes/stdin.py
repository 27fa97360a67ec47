"""A program's standard input: a named pipe that nobody's death closes but the program's own, and who writes into it.

The program holds the pipe open for reading and writing, so it sees no end of its input when the daemon dies, and what
was sent and not read yet stays. The daemon opens it for each piece anew, so it has no descriptor for it, and the next
daemon can go on with nothing but the path.
"""

import asyncio
import errno
import os
import stat
import time
from pathlib import Path

from supervisor.protocol import layout

PATIENCE_S = 5.0  # for a program to make room; a person who types waits no longer
LOOK_S = 0.02  # between two tries, only while the pipe is full


class StdinClosed(Exception):
    """The program has no standard input to write to: it closed it, or never had one."""


class StdinFull(Exception):
    """The program did not read in time; the text says how much of what was sent it has got."""


class Stdin:
    """The standard input of one attempt, by the folder that its pipe is in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sending = asyncio.Lock()

    async def write(self, data: bytes, patience_s: float = PATIENCE_S) -> None:
        """Writes all of it, after what others are writing. Up to 4096 bytes arrive as a whole or not at all.

        Raises StdinClosed, or StdinFull after `patience_s`.
        """
        until = time.monotonic() + patience_s
        try:
            async with asyncio.timeout(patience_s):
                await self._sending.acquire()
        except TimeoutError:
            raise StdinFull("others are still being waited for; nothing was sent") from None
        try:
            await self._send(data, until)
        finally:
            self._sending.release()

    async def _send(self, data: bytes, until: float) -> None:
        descriptor = self._open()
        sent = 0
        try:
            while sent < len(data):
                try:
                    sent += os.write(descriptor, data[sent:])
                except BlockingIOError:
                    if time.monotonic() >= until:
                        raise StdinFull(
                            f"it reads too slowly or not at all: {sent} of {len(data)} bytes sent"
                        ) from None
                    await asyncio.sleep(LOOK_S)
        except BrokenPipeError as error:
            raise StdinClosed("it has closed its standard input") from error
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        path = self._folder / layout.STDIN
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            why = "it has closed its standard input" if error.errno == errno.ENXIO else f"{path}: {error.strerror}"
            raise StdinClosed(why) from error
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StdinClosed(f"{path} is not a named pipe")
        return descriptor


def create_pipe(folder: Path, owner: tuple[int, int] | None) -> int:
    """Makes the pipe in `folder`, an attempt's own; gives what the program is to have as descriptor 0.

    `owner`: uid and gid of the program, so that it may open /dev/stdin. Raises OSError.
    """
    path = folder / layout.STDIN
    os.mkfifo(path, mode=0o600)
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def create_unnamed_pipe() -> int:
    """As `create`, where no file can be made: nobody can write into it, and it has no end either. Raises OSError."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{reading}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(reading)
        os.close(writing)
