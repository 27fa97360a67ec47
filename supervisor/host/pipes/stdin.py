"""A program's standard input: a named pipe that only the program's own end closes.

The program holds the pipe open for reading and writing, so its input does not end when the daemon dies, and unread data
stays. The daemon opens the pipe for each write, so it keeps no descriptor, and the next daemon needs only the path.
"""

import asyncio
import errno
import os
import stat
import time
from pathlib import Path

from supervisor.protocol import layout

WRITE_TIMEOUT_S = 5.0  # how long a full pipe is waited for; a person who types waits no longer
RETRY_S = 0.02  # between two tries, while the pipe is full


class StdinClosed(Exception):
    """The program has no standard input: it has closed it, or never had one."""


class StdinFull(Exception):
    """The program did not read in time; the text says how much was written."""


class Stdin:
    """The standard input of one attempt. `folder`: where its pipe is."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sending = asyncio.Lock()

    async def write(self, data: bytes, timeout_s: float = WRITE_TIMEOUT_S) -> None:
        """Writes all of it, after earlier writes. Up to 4096 bytes arrive as a whole or not at all.

        Raises StdinClosed, or StdinFull after `timeout_s`.
        """
        until = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._sending.acquire()
        except TimeoutError:
            raise StdinFull("earlier input still waits for the program to read; nothing was sent") from None
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
                            f"the program does not read, or too slowly: {sent} of {len(data)} bytes sent"
                        ) from None
                    await asyncio.sleep(RETRY_S)
        except BrokenPipeError as error:
            raise StdinClosed("the program has closed its standard input") from error
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        path = self._folder / layout.STDIN
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            why = (
                "the program has closed its standard input"
                if error.errno == errno.ENXIO
                else f"{path}: {error.strerror}"
            )
            raise StdinClosed(why) from error
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StdinClosed(f"{path} is not a named pipe")
        return descriptor


def create_pipe(folder: Path, owner: tuple[int, int] | None) -> int:
    """Creates the pipe in the attempt's folder; returns the descriptor for the program's standard input.

    `owner`: uid and gid of the program, so that it may open /dev/stdin. Raises OSError.
    """
    path = folder / layout.STDIN
    os.mkfifo(path, mode=0o600)
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)
    return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)


def create_unnamed_pipe() -> int:
    """As `create_pipe`, where no file can be made: an input that nobody can write to and that never ends."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        return os.open(f"/proc/self/fd/{reading}", os.O_RDWR | os.O_CLOEXEC)
    finally:
        os.close(reading)
        os.close(writing)
