"""A log file that rotates, follows its name when somebody moves it, and survives a full disk."""

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from supervisor.host.logs.files import compression
from supervisor.host.logs.files.positions import LogPosition, position_in
from supervisor.host.user_folders.guarded_open import MAX_LINKS, guarded_folder, open_guarded
from supervisor.protocol.plurals import counted

CHECK_EVERY_S = 1.0  # output may go so long to a file that somebody moved or deleted
MAX_BACKUPS = 1000  # deleted when a log is cleared that nobody writes
RETRY_EVERY_S = 1.0  # after an error: on a bad disk each attempt may take long


class OutputFile:
    """The file at `path` and its backups `path.1` (newest) to `path.<backups>`; `maxbytes` 0: it is never rotated.

    With `compress`, a backup becomes `path.1.gz` and so on, some time after the rotation (`compression.py`).

    Belongs to one thread. `write` never raises: what can't be written is dropped and counted, and once writing works
    again one line in the file says how much was dropped and why. `error`: the latest error, None if there is none.
    `users`: uids whose file it may be in a folder that several can write.
    """

    def __init__(self, path: Path, maxbytes: int, backups: int) -> None:
        self.path = path
        self.maxbytes = maxbytes
        self.backups = backups
        self.compress = False
        self.users: frozenset[int] = frozenset()
        self.error: str | None = None
        self.retry_every_s = RETRY_EVERY_S
        self._descriptor: int | None = None
        self._identity = (0, 0)
        self._size = 0
        self._is_regular = True  # and made for this log, so it may be rotated and emptied
        self._at_line_start = True
        self._dropped = 0
        self._cause = ""
        self._check_at = 0.0
        self._retry_at = 0.0
        self._renaming = threading.Lock()  # held by whoever renames or deletes backups
        self._not_compressed: str | None = None  # why; set by another thread
        self._rotated = compression.Rotated()

    def write(self, data: bytes) -> None:
        """Appends `data`; rotates when the file is full, between lines where possible."""
        if self._dropped and time.monotonic() < self._retry_at:
            self._dropped += len(data)
            return
        done = 0
        try:
            self._follow_name()
            self._write_loss_line()
            self.error = self._not_compressed
            while done < len(data):
                done += self._append(data[done : done + self._bytes_until_rotation(data, done)])
        except OSError as error:
            self._cause = error.strerror or str(error)
            self.error = f"cannot write {self.path}: {self._cause}; the output of its program is dropped"
            self._dropped += len(data) - done
            self._retry_at = time.monotonic() + self.retry_every_s

    def record_loss(self, count: int, cause: str) -> None:
        """Has the file say that `count` bytes, which the caller had to drop, are missing."""
        self._dropped, self._cause = self._dropped + count, cause
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
        if not self._is_regular:
            return
        with self._renaming, guarded_folder(self.path.parent) as folder:
            _delete_backups(self.path.name, self.backups, folder)
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

    def position(self) -> LogPosition | None:
        """Where the next byte is written; None if that can't be said. Creates the file."""
        self.write(b"")
        if self._descriptor is None or not self._is_regular:
            return None
        try:
            reading = open_guarded(self.path, os.O_RDONLY, users=self.users)
            try:
                position = position_in(reading, self._size)
            finally:
                os.close(reading)
        except OSError:
            return None
        return position if position.inode == self._identity[1] else None

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
            most = self.maxbytes * (1 + self.backups)  # as much as with all backups
            self.error = f"cannot rotate {self.path}: {error.strerror}; it grows to {most} bytes, and is emptied then"
            if self._size + len(data) - start > most:
                self._dropped, self._cause = self._size, f"cannot rotate: {error.strerror}"
                self._truncate()
                self._write_loss_line()
            return min(len(data) - start, max(1, most - self._size))
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
        with self._renaming, guarded_folder(self.path.parent) as folder:
            _make_backup(self.path.name, self.backups, folder)
        if self._descriptor is not None:
            self._rotated.note(os.fstat(self._descriptor), self.backups)
        self._open()
        if self.compress:
            with contextlib.suppress(RuntimeError):  # the host has no thread to spare: later, with the next one
                compression.schedule(self.compress_in_turns, self.path)

    def compress_backups(self) -> None:
        """Compresses the backups that are not yet, in the caller's thread."""
        for _ in self.compress_in_turns():
            pass

    def compress_in_turns(self) -> Iterator[None]:
        """Compresses the backups that are not yet, in whatever thread, in turns; `error` says why one could not be."""
        self._rotated.maxbytes = self.maxbytes
        try:
            yield from compression.compress_backups(self.path, self.backups, self.users, self._renaming, self._rotated)
            self._not_compressed = None
        except OSError as error:
            why = error.strerror or str(error)
            self._not_compressed = (
                f"cannot compress a backup of {self.path}: {why}; it stays as it is until the next rotation"
            )

    def _truncate(self) -> None:
        assert self._descriptor is not None
        if self._is_regular:
            os.ftruncate(self._descriptor, 0)
            self._size, self._at_line_start = 0, True

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
        self._is_regular = stat.S_ISREG(status.st_mode) and not _is_of_process(self.path)
        self._size, self._at_line_start = status.st_size, True
        self._check_at = time.monotonic() + CHECK_EVERY_S


def _is_of_process(path: Path) -> bool:
    """Whether a path leads to what some process has open, such as `/dev/stdout`, or a link to it.

    What that is, somebody else made and may go on reading or writing, also if it is a regular file.
    """
    for _ in range(MAX_LINKS):
        folder = path.parent.resolve()
        if folder.is_relative_to("/proc"):
            return True
        try:
            path = folder / (folder / path.name).readlink()
        except OSError:  # it is no link
            return False
    return False


_SUFFIXES = ("", compression.SUFFIX)


def _make_backup(name: str, backups: int, folder: int) -> None:
    """Makes the file the newest of `backups`; the oldest is deleted."""
    _delete_backup(name, backups, folder)
    for number in range(backups - 1, 0, -1):
        for suffix in _SUFFIXES:
            older, newer = f"{name}.{number + 1}{suffix}", f"{name}.{number}{suffix}"
            with contextlib.suppress(FileNotFoundError):
                os.replace(newer, older, src_dir_fd=folder, dst_dir_fd=folder)
    os.replace(name, f"{name}.1", src_dir_fd=folder, dst_dir_fd=folder)


def _delete_backup(name: str, number: int, folder: int) -> bool:
    """Deletes a backup in whatever form; False if there is none."""
    deleted = False
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{name}.{number}{suffix}", dir_fd=folder)
            deleted = True
    return deleted


def _delete_backups(name: str, least: int, folder: int) -> None:
    """Deletes backups up to the first number after `least` that has none: there may have been more of them once."""
    for number in range(1, MAX_BACKUPS + 1):  # a user may have made any number of files of such names
        if not _delete_backup(name, number, folder) and number > least:
            break


def rotate_unopened(path: Path, backups: int, compress: bool) -> None:
    """Rotates a log file that no logger may have open. Raises OSError."""
    with contextlib.closing(OutputFile(path, 0, backups)) as file:
        file.rotate()
    if compress:
        file.compress_backups()


def truncate_with_backups(path: Path) -> None:
    """Empties a log file that no logger may have open, and deletes its backups, up to the first missing number."""
    if _is_of_process(path):
        return
    with contextlib.suppress(FileNotFoundError):
        with guarded_folder(path.parent) as folder:
            _delete_backups(path.name, 0, folder)
        descriptor = open_guarded(path, os.O_WRONLY)
        try:
            os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)
