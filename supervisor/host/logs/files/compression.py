"""Compresses backups of log files (gzip), in a thread of its own: no program waits for it.

A backup is compressed into a file beside it, which takes its place once it is whole and on the disk. Whatever
interrupts that, the backup is there, in one form or the other, and the next rotation goes on with it.
"""

import contextlib
import os
import queue
import shutil
import threading
from collections.abc import Callable, Collection
from pathlib import Path

from supervisor.host.guarded_open import guarded_folder, open_guarded
from supervisor.host.logs.files.positions import COMPRESSED_NAME

LEVEL = 6  # gzip's own default
SUFFIX = ".gz"
PARTIAL = ".gz-partial"  # of the one backup that is being compressed
IDLE_THREAD_S = 10.0

_waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
_starting = threading.Lock()
_thread: threading.Thread | None = None


def schedule(work: Callable[[], None]) -> None:
    """Has the thread do it, after what was scheduled before. `work` must not raise. Raises RuntimeError if no thread
    can be started; then it is done with the next one."""
    global _thread
    with _starting:
        _waiting.put(work)
        if _thread is None:
            thread = threading.Thread(target=_run, name="compress", daemon=True)
            thread.start()
            _thread = thread


def _run() -> None:
    global _thread
    while True:
        try:
            work = _waiting.get(timeout=IDLE_THREAD_S)
        except queue.Empty:
            with _starting:
                if _waiting.empty():
                    _thread = None
                    return
            continue
        work()


def compress_backups(path: Path, backups: int, users: Collection[int], renaming: threading.Lock) -> None:
    """Compresses the backups of the log file at `path` that are not yet. Raises OSError.

    `users`: as for `open_guarded`. `renaming`: held by whoever renames or deletes backups.
    """
    for number in range(1, backups + 1):
        with contextlib.suppress(FileNotFoundError):
            _compress(path, path.with_name(f"{path.name}.{number}"), backups, users, renaming)


def _compress(path: Path, backup: Path, backups: int, users: Collection[int], renaming: threading.Lock) -> None:
    import gzip  # only where something is compressed

    source = open_guarded(backup, os.O_RDONLY, users=users)
    partial = path.with_name(path.name + PARTIAL)
    try:
        found = os.fstat(source)
        target = open_guarded(partial, os.O_WRONLY | os.O_CREAT, found.st_mode & 0o777, users=users)
        try:
            os.ftruncate(target, 0)  # of a compression that was interrupted
            with (
                open(source, "rb", closefd=False) as plain,
                open(target, "wb", closefd=False) as file,
                gzip.GzipFile(COMPRESSED_NAME.format(found.st_ino), "wb", LEVEL, file) as packed,
            ):
                shutil.copyfileobj(plain, packed, 1 << 20)
            os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))  # as gzip itself
            os.fsync(target)
        finally:
            os.close(target)
        with renaming, guarded_folder(path.parent) as folder:
            _replace(path.name, backups, (found.st_dev, found.st_ino), folder)
    except BaseException:
        with contextlib.suppress(OSError), guarded_folder(path.parent) as folder:
            os.unlink(partial.name, dir_fd=folder)
        raise
    finally:
        os.close(source)


def _replace(name: str, backups: int, source: tuple[int, int], folder: int) -> None:
    """Puts the compressed file in the place of the backup, which may have another number by now, or be deleted."""
    for number in range(1, backups + 1):
        backup = f"{name}.{number}"
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(backup, dir_fd=folder, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == source:
                os.replace(f"{name}{PARTIAL}", f"{backup}{SUFFIX}", src_dir_fd=folder, dst_dir_fd=folder)
                os.unlink(backup, dir_fd=folder)
                return
    os.unlink(f"{name}{PARTIAL}", dir_fd=folder)
