"""Takes what programs print and puts it into their log files, in one thread of its own.

A slow disk or a program that floods its output delays other programs' logs, never their supervision.
"""

import contextlib
import errno
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from supervisor.host.log_file import LogFile

READ_BYTES = 64 * 1024  # a pipe's default capacity
LAST_READS = 16  # per pipe when the daemon leaves: a grandchild that prints for ever must not hold it
ANSWER_S = 10.0  # how long `clear` waits for a disk
CLOSE_S = 5.0  # how long `close` does


class LogPump:
    """Pipes in, files out. `start` it before the first program and `close` it after the last."""

    def __init__(self) -> None:
        self._sources: dict[int, LogFile | None] = {}  # by the pipe's reading end
        self._files: dict[Path, LogFile] = {}
        self._orders: deque[Callable[[], None]] = deque()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._bell, select.EPOLLIN)
        self._lock = threading.Lock()
        self._closed = False  # no more orders are taken
        self._is_open = True  # the thread goes on
        self._thread = threading.Thread(target=self._run, name="logs", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    @property
    def troubles(self) -> dict[Path, str]:
        """Log files that can't be written at present, and why."""
        return {path: file.trouble for path, file in list(self._files.items()) if file.trouble is not None}

    def capture(self, path: Path | None, maxbytes: int, backups: int) -> int:
        """The writing end of a new pipe, for a program; the caller closes it once the program has it.

        What comes through goes to the file at `path`, shared with all other captures of that path (the latest limits
        hold), until every holder has closed the pipe, grandchildren too; to nowhere if `path` is None.
        Raises OSError if there are no descriptors left, or after `close`.
        """
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        if not self._order(lambda: self._take_up(reading, path, maxbytes, backups)):
            os.close(reading)
            os.close(writing)
            raise OSError(errno.ESHUTDOWN, "Logs are closed")
        return writing

    def reopen(self) -> None:
        """Opens all files again by their names, for whoever has rotated them."""
        self._order(self._reopen)

    def clear(self, path: Path) -> None:
        """Empties a log file and deletes its backups; waits for it. Raises OSError, TimeoutError among them."""
        done: Future[None] = Future()
        if not self._order(lambda: self._clear(path, done)):
            self._clear(path, done)
        done.result(ANSWER_S)

    def close(self) -> None:
        """Writes what can still be read, closes everything and ends the thread; waits at most CLOSE_S for it."""
        self._order(self._leave, last=True)
        self._thread.join(CLOSE_S)

    def _order(self, order: Callable[[], None], last: bool = False) -> bool:
        """Has the thread do something; False if it was told to end before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = last
            self._orders.append(order)
            os.eventfd_write(self._bell, 1)
            return True

    # --- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._is_open:
            for descriptor, _ in self._epoll.poll():
                if descriptor == self._bell:
                    os.eventfd_read(self._bell)
                    while self._orders and self._is_open:
                        self._orders.popleft()()
                elif descriptor in self._sources:
                    self._pump(descriptor)
        self._epoll.close()
        os.close(self._bell)

    def _take_up(self, reading: int, path: Path | None, maxbytes: int, backups: int) -> None:
        file = None
        if path is not None:
            file = self._files.setdefault(path, LogFile(path, maxbytes, backups))
            file.maxbytes, file.backups = maxbytes, backups
            file.write(b"")  # so that it exists for those who look for it
        self._sources[reading] = file
        self._epoll.register(reading, select.EPOLLIN)

    def _reopen(self) -> None:
        for file in self._files.values():
            file.reopen()

    def _pump(self, descriptor: int) -> bool:
        """Moves one piece; False if there was none."""
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        file = self._sources[descriptor]
        if not data:
            self._let_go(descriptor)
        elif file is not None:
            file.write(data)
        return bool(data)

    def _let_go(self, descriptor: int) -> None:
        file = self._sources.pop(descriptor)
        self._epoll.unregister(descriptor)
        os.close(descriptor)
        if file is not None and file not in self._sources.values():
            file.finish()
            del self._files[file.path]

    def _clear(self, path: Path, done: Future[None]) -> None:
        file = self._files.get(path)
        try:
            if file is not None:
                file.clear()
            elif path.exists():
                empty(path)
        except OSError as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _leave(self) -> None:
        for descriptor in list(self._sources):
            for _ in range(LAST_READS):
                if not self._pump(descriptor):
                    break
            if descriptor in self._sources:
                self._let_go(descriptor)
        self._is_open = False


def empty(path: Path) -> None:
    """Empties a log file that may be nobody's, and deletes its backups: those whose numbers have no gap."""
    number = 1
    while (backup := path.with_name(f"{path.name}.{number}")).exists():
        backup.unlink(missing_ok=True)
        number += 1
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, 0)
