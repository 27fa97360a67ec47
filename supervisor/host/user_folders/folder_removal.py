"""Removes folders that other users can write, however deep or large, without waiting and without recursion.

A folder with a few files is deleted at once. Any other is renamed into REMOVED beside it, a folder of the daemon's own,
and deleted by one thread in the background: each subfolder is moved up to REMOVED before it is emptied, so that depth
costs neither stack nor descriptors. What is left when the daemon ends, the next one deletes. What a user has mounted
something over is not looked at, and stays.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from supervisor.host.user_folders.mounted_over import folder_of_user, open_in

FILES_AT_ONCE = 32  # an attempt's folder holds five; unlinking so many takes under a millisecond
REMOVED = ".removed"
PASSES = 3  # over one folder; somebody who still writes into it does not keep the thread
IDLE_S = 10.0


def remove_folder(folder: Path) -> None:
    """Takes a folder away from its name; what is in it is deleted now, or soon. Follows no links.

    Nothing happens if there is none. Raises OSError if it can't be taken away.
    """
    try:
        if _remove_small(folder):
            return
    except FileNotFoundError:
        return
    except OSError:
        pass  # moving it away may still be possible
    removed = folder.parent / REMOVED
    while _is_there(folder):
        with contextlib.suppress(FileExistsError):
            removed.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # the thread had just emptied and deleted REMOVED
            folder.rename(removed / os.urandom(8).hex())
    _worker.add(partial(empty_removed, removed))


def try_to_remove_folder(folder: Path) -> None:
    """As `remove_folder`; one that can't be taken away stays, and the next daemon tries again."""
    with contextlib.suppress(OSError):
        remove_folder(folder)


def remove_soon(folder: Path) -> None:
    """As `try_to_remove_folder`, in the background: the disk may keep whoever does it waiting. Never raises."""
    _worker.add(partial(try_to_remove_folder, folder))


def resume_removal(runtime_dir: Path) -> None:
    """Deletes, in the background, what earlier daemons did not get to in the folders of their programs."""
    with contextlib.suppress(OSError), os.scandir(runtime_dir) as entries:
        for entry in entries:
            removed = Path(entry.path) / REMOVED
            if removed.is_dir() and not removed.is_symlink():
                _worker.add(partial(empty_removed, removed))


def empty_removed(removed: Path) -> None:
    """Deletes a folder REMOVED with all that is in it. What can't be deleted stays. Raises OSError if it can't be read.

    Blocks as long as it takes.
    """
    top = os.open(removed, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        stuck: set[str] = set()
        while names := [name for name in os.listdir(top) if name not in stuck]:  # noqa: PTH208 - a descriptor
            for name in names:
                if not _remove_one(top, name):
                    stuck.add(name)
    finally:
        os.close(top)
    with contextlib.suppress(OSError):  # something is stuck, or was moved here meanwhile
        removed.rmdir()


def _is_there(folder: Path) -> bool:
    """Whether anything has this name, which is not looked at: it may be mounted over."""
    try:
        os.close(os.open(folder, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    return True


def _remove_small(folder: Path) -> bool:
    """Deletes a folder of a few files; False if it holds more, or folders."""
    with folder_of_user(folder) as seen, _open_folder(".", seen) as descriptor:
        names: list[str] = []
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if len(names) == FILES_AT_ONCE or entry.is_dir(follow_symlinks=False):
                    return False
                names.append(entry.name)
        for name in names:
            os.unlink(name, dir_fd=descriptor)
    folder.rmdir()
    return True


def _remove_one(top: int, name: str) -> bool:
    """Deletes one entry of the folder `top`, after its subfolders have been moved there; whether it is gone."""
    try:
        os.unlink(name, dir_fd=top)
        return True
    except FileNotFoundError:
        return True
    except OSError:  # a folder, for which the error differs between file systems
        pass
    for _ in range(PASSES):
        with contextlib.suppress(OSError):
            _move_up_and_unlink(top, name)
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=top)
            return True
    return False


def _move_up_and_unlink(top: int, name: str) -> None:
    with _open_folder(name, top) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    os.rename(entry.name, os.urandom(8).hex(), src_dir_fd=descriptor, dst_dir_fd=top)
                else:
                    os.unlink(entry.name, dir_fd=descriptor)


@contextlib.contextmanager
def _open_folder(name: str, inside: int) -> Iterator[int]:
    descriptor = open_in(inside, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _RemovalWorker:
    """Removes folders one after another in a daemon thread, which ends when it has nothing to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._has_thread = False

    def add(self, remove: Callable[[], None]) -> None:
        """Calls it soon; without a thread to spare, with the next folder, or else the next daemon removes it."""
        with self._lock:
            self._calls.put(remove)
            if not self._has_thread:
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=self._run, name="removal", daemon=True).start()
                    self._has_thread = True

    def _run(self) -> None:
        while True:
            try:
                remove = self._calls.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._calls.empty():
                        self._has_thread = False
                        return
                continue
            with contextlib.suppress(OSError):
                remove()


_worker = _RemovalWorker()
