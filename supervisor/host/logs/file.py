"""A log file that rotates, follows its name when somebody moves it, and survives a full disk."""

import contextlib
import os
import stat
import time
from pathlib import Path

from supervisor.host.guarded_open import guarded_folder, open_guarded
from supervisor.protocol.plurals import counted

CHECK_EVERY_S = 1.0  # output may go so long to a file that somebody moved or deleted
MAX_BACKUPS = 1000  # deleted when a log is cleared that nobody writes
RETRY_EVERY_S = 1.0  # after an error: on a bad disk each attempt may take long


class LogFile:
    """The file at `path` and its backups `path.1` (newest) to `path.<backups>`; `maxbytes` 0: it is never rotated.

    Belongs to one thread. `write` never raises: what can't be written is dropped and counted, and once writing works
    again one line in the file says how much was dropped and why. `error`: the latest error, None if there is none.
    `users`: uids whose file it may be in a folder that several can write.
    """

    def __init__(self, path: Path, maxbytes: int, backups: int) -> None:
        self.path = path
        self.maxbytes = maxbytes
        self.backups = backups
        self.users: frozenset[int] = frozenset()
        self.error: str | None = None
        self.retry_every_s = RETRY_EVERY_S
        self._descriptor: int | None = None
        self._identity = (0, 0)
        self._size = 0
        self._is_regular = True
        self._at_line_start = True
        self._dropped = 0
        self._cause = ""
        self._check_at = 0.0
        self._retry_at = 0.0

    def write(self, data: bytes) -> None:
        """Appends `data`; rotates when the file is full, between lines where possible."""
        if self._dropped and time.monotonic() < self._retry_at:
            self._dropped += len(data)
            return
        done = 0
        try:
            self._follow_name()
            self._write_loss_line()
            self.error = None
            while done < len(data):
                done += self._append(data[done : done + self._bytes_until_rotation(data, done)])
        except OSError as error:
            self._cause = error.strerror or str(error)
            self.error = f"cannot write {self.path}: {self._cause}; the output of its program is dropped"
            self._dropped += len(data) - done
            self._retry_at = time.monotonic() + self.retry_every_s

    def record_loss(self, count: int, cause: str) -> None:
        """Has the file say that `count` bytes, which the caller had to drop, are missing."""
        self._dropped += count
        self._cause = cause
        self.write(b"")

    def reopen(self) -> None:
        """Continues in the file that has the name now, creating it if there is none."""
        self.close()
        self.write(b"")

    def clear(self) -> None:
        """Empties the file and deletes its backups; does not create a file. Raises OSError."""
        if self._descriptor is None:
            truncate_with_backups(self.path)
            return
        with guarded_folder(self.path.parent) as folder:
            for number in range(1, self.backups + 1):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._backup_name(number), dir_fd=folder)
        self._check_at = 0.0
        self._follow_name()
        self._truncate()

    def rotate(self) -> None:
        """Makes the file the newest backup and begins a new one, unless it is empty or missing. Raises OSError."""
        if self._descriptor is None and not self.path.exists():
            return
        self._check_at = 0.0
        self._follow_name()
        if self._size and self._is_regular and self.backups:
            self._rotate()

    def close(self) -> None:
        """Closes the file; the next write opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def finish(self) -> None:
        """Writes what was dropped, if possible, and closes the file."""
        if self._dropped:
            self._retry_at = 0.0
            self.write(b"")
        self.close()

    def _append(self, data: bytes) -> int:
        assert self._descriptor is not None
        sent = os.write(self._descriptor, data)
        self._size += sent
        self._at_line_start = data[sent - 1 : sent] == b"\n"
        return sent

    def _write_loss_line(self) -> None:
        if not self._dropped:
            return
        line = f"[stepkeeper dropped {counted(self._dropped, 'byte')}: {self._cause}]\n"
        rest = (line if self._at_line_start else f"\n{line}").encode()
        while rest:
            rest = rest[self._append(rest) :]
        self._dropped = 0

    def _bytes_until_rotation(self, data: bytes, start: int) -> int:
        """How many bytes of `data` from `start` on go into the current file; rotates first if none do."""
        if not self.maxbytes or not self._is_regular:
            return len(data) - start
        fitting = self._bytes_that_fit(data, start)
        if fitting or not self._size:
            return fitting or self.maxbytes  # a line longer than a whole file is cut
        try:
            self._rotate()
        except OSError as error:
            if self._descriptor is None:
                raise
            self.error = f"cannot rotate {self.path}: {error.strerror}; it grows beyond {self.maxbytes} bytes"
            return len(data) - start
        return self._bytes_that_fit(data, start) or self.maxbytes

    def _bytes_that_fit(self, data: bytes, start: int) -> int:
        """The size of `data` from `start` on if the file has room for it, else of the whole lines that fit."""
        wanted, room = len(data) - start, max(0, self.maxbytes - self._size)
        if wanted <= room:
            return wanted
        return max(0, data.rfind(b"\n", start, start + room) + 1 - start)

    def _rotate(self) -> None:
        if not self.backups:
            self._truncate()
            return
        with guarded_folder(self.path.parent) as folder:
            for number in range(self.backups - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._rename(self._backup_name(number), number + 1, folder)
            self._rename(self.path.name, 1, folder)
        self._open()

    def _truncate(self) -> None:
        assert self._descriptor is not None
        if self._is_regular:
            os.ftruncate(self._descriptor, 0)
            self._size, self._at_line_start = 0, True

    def _rename(self, name: str, number: int, folder: int) -> None:
        os.replace(name, self._backup_name(number), src_dir_fd=folder, dst_dir_fd=folder)

    def _backup_name(self, number: int) -> str:
        return f"{self.path.name}.{number}"

    def _follow_name(self) -> None:
        """Opens the file again if its name now belongs to another file, or to none. Checks once in CHECK_EVERY_S."""
        now = time.monotonic()
        if self._descriptor is not None and now < self._check_at:
            return
        if self._descriptor is not None:
            with contextlib.suppress(FileNotFoundError):
                named = self.path.stat()
                if (named.st_dev, named.st_ino) == self._identity:
                    self._size = named.st_size  # somebody may have truncated it
                    self._check_at = now + CHECK_EVERY_S
                    return
        self._open()

    def _open(self) -> None:
        self.close()
        self._descriptor = open_guarded(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, users=self.users)
        status = os.fstat(self._descriptor)
        self._identity = (status.st_dev, status.st_ino)
        self._is_regular = stat.S_ISREG(status.st_mode)
        self._size, self._at_line_start = status.st_size, True
        self._check_at = time.monotonic() + CHECK_EVERY_S


def rotate_unopened(path: Path, backups: int) -> None:
    """Rotates a log file that no logger may have open. Raises OSError."""
    file = LogFile(path, 0, backups)
    try:
        file.rotate()
    finally:
        file.close()


def truncate_with_backups(path: Path) -> None:
    """Empties a log file that no logger may have open, and deletes its backups, up to the first missing number."""
    with contextlib.suppress(FileNotFoundError):
        with guarded_folder(path.parent) as folder, contextlib.suppress(FileNotFoundError):
            for number in range(1, MAX_BACKUPS + 1):  # a user may have made any number of files of such names
                os.unlink(f"{path.name}.{number}", dir_fd=folder)
        descriptor = open_guarded(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
