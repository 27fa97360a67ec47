"""Compresses backups of log files (gzip), in a thread of its own: no program waits for it.

A backup is compressed into a file beside it, which takes its place once it is whole and on the disk. Whatever
interrupts that, the backup is there, in one form or the other, and the next rotation goes on with it.

The logs take turns, so that a large one keeps none of the others waiting, and one that is deleted meanwhile is left at
its next turn. In a folder that others than root can write, what has the name of a backup may be anything: there only
files are compressed that this logger has rotated itself (`Rotated`), and none that is larger than a log may be or
has holes, as a file of terabytes that takes no room.
"""

import contextlib
import errno
import os
import queue
import stat
import threading
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from supervisor.host.logs.files.positions import COMPRESSED_NAME
from supervisor.host.user_folders.guarded_open import guarded_folder, open_guarded

LEVEL = 6  # gzip's own default
SUFFIX = ".gz"
PARTIAL = ".gz-partial"  # of the one backup that is being compressed
PIECE_BYTES = 1 << 20
TURN_BYTES = 16 << 20  # a quarter of a second of a processor
SLACK_BYTES = 64 << 10  # a line that says what was dropped may make a log larger than its limit
IDLE_THREAD_S = 10.0

Work = Callable[[], Iterator[None] | None]
"""What is done at once, or in the turns of an iterator. It must not raise."""

_waiting: queue.SimpleQueue[tuple[Hashable, Work]] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def schedule(work: Work, key: Hashable = None) -> None:
    """Has the thread do it, in turn with what was scheduled before, but after that of the same `key`.

    Raises RuntimeError if no thread can be started; then it is done with the next one.
    """
    global _thread
    with _starting:
        _waiting.put((key, work))
        if _thread is None:
            thread = threading.Thread(target=_run, name="compress", daemon=True)
            thread.start()
            _thread = thread


def _run() -> None:
    global _thread
    turns: deque[tuple[Hashable, Iterator[None]]] = deque()
    later: deque[tuple[Hashable, Work]] = deque()  # others of the same key have their turns
    while True:
        is_idle = not turns
        with contextlib.suppress(queue.Empty):
            fresh = _waiting.get(block=is_idle, timeout=IDLE_THREAD_S)
            is_idle = False
            while True:
                if fresh not in later:  # once more is enough, however often the log was rotated meanwhile
                    later.append(fresh)
                fresh = _waiting.get_nowait()
        with _starting:
            if is_idle and _waiting.empty():
                _thread = None
                return
        _begin(later, turns)
        if turns:
            key, steps = turns.popleft()
            if next(steps, steps) is None:
                turns.append((key, steps))
            _begin(later, turns)


def _begin(later: deque[tuple[Hashable, Work]], turns: deque[tuple[Hashable, Iterator[None]]]) -> None:
    """Begins what waits for nothing of the same key."""
    for _ in range(len(later)):
        key, work = later.popleft()
        if key is not None and any(key == other for other, _ in turns):
            later.append((key, work))
        elif (steps := work()) is not None:
            turns.append((key, steps))


@dataclass(slots=True)
class Rotated:
    """What a logger knows of the backups of one log: the size of each, by device and inode, as it was rotated.

    `maxbytes`: how large the log may be; 0: as large as it likes.
    """

    maxbytes: int = 0
    sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    def note(self, status: os.stat_result, kept: int) -> None:
        """A log has become a backup; `kept`: how many of them stay."""
        self.sizes[status.st_dev, status.st_ino] = status.st_size
        while len(self.sizes) > kept:
            del self.sizes[next(iter(self.sizes))]

    def check(self, backup: int) -> bool:
        """Whether the file that is open there is a backup of this log. Raises OSError if it must not be compressed."""
        status = os.fstat(backup)
        size = self.sizes.get((status.st_dev, status.st_ino))
        if size is None:
            return False
        allowed = min(size, self.maxbytes + SLACK_BYTES) if self.maxbytes else size
        if status.st_size > allowed:
            text = f"it has {status.st_size} bytes, and the log may have had {allowed}"
            raise OSError(errno.EFBIG, text)
        if os.lseek(backup, 0, os.SEEK_HOLE) < status.st_size:
            raise OSError(errno.EFBIG, "it has holes, and a log has none")
        os.lseek(backup, 0, os.SEEK_SET)
        return True


def compress_backups(
    path: Path, backups: int, users: Collection[int], renaming: threading.Lock, rotated: Rotated
) -> Iterator[None]:
    """Compresses the backups of the log file at `path` that are not yet, in turns. Raises OSError.

    `users`: as for `open_guarded`. `renaming`: held by whoever renames or deletes backups.
    """
    for number in range(1, backups + 1):
        with contextlib.suppress(FileNotFoundError):
            yield from _compress(path, path.with_name(f"{path.name}.{number}"), backups, users, renaming, rotated)


def _compress(
    path: Path, backup: Path, backups: int, users: Collection[int], renaming: threading.Lock, rotated: Rotated
) -> Iterator[None]:
    import gzip  # only where something is compressed

    source = open_guarded(backup, os.O_RDONLY, users=users)
    partial = path.with_name(path.name + PARTIAL)
    try:
        with guarded_folder(path.parent) as folder:
            if not _is_ours_alone(folder) and not rotated.check(source):
                return
        status = os.fstat(source)
        target = open_guarded(partial, os.O_WRONLY | os.O_CREAT, status.st_mode & 0o777, users=users)
        try:
            os.ftruncate(target, 0)  # of a compression that was interrupted
            with (
                open(source, "rb", closefd=False) as plain,
                open(target, "wb", closefd=False) as file,
                gzip.GzipFile(COMPRESSED_NAME.format(status.st_ino), "wb", LEVEL, file) as packed,
            ):
                yield from _copy(plain, packed.write, status.st_size)
            os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))  # as gzip itself
            os.fsync(target)
        finally:
            os.close(target)
        with renaming, guarded_folder(path.parent) as folder:
            _replace(path.name, backups, (status.st_dev, status.st_ino), folder)
    except BaseException:
        with contextlib.suppress(OSError), guarded_folder(path.parent) as folder:
            os.unlink(partial.name, dir_fd=folder)
        raise
    finally:
        os.close(source)


def _copy(plain: BinaryIO, write: Callable[[bytes], object], size: int) -> Iterator[None]:
    """Copies `size` bytes in turns. Raises FileNotFoundError once the file has no name any more."""
    done = 0
    while done < size and (piece := plain.read(min(PIECE_BYTES, size - done))):
        write(piece)
        done += len(piece)
        if done % TURN_BYTES == 0:
            yield
            if os.fstat(plain.fileno()).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _is_ours_alone(folder: int) -> bool:
    """Whether nobody but this user and root can put a file there."""
    if os.geteuid() != 0:
        return True
    status = os.fstat(folder)
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _replace(name: str, backups: int, source: tuple[int, int], folder: int) -> None:
    """Puts the compressed file in the place of the backup, which may have another number by now, or be deleted."""
    for number in range(1, backups + 1):
        backup = f"{name}.{number}"
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(backup, dir_fd=folder, follow_symlinks=False)
            if (status.st_dev, status.st_ino) == source:
                os.replace(f"{name}{PARTIAL}", f"{backup}{SUFFIX}", src_dir_fd=folder, dst_dir_fd=folder)
                os.unlink(backup, dir_fd=folder)
                return
    os.unlink(f"{name}{PARTIAL}", dir_fd=folder)
