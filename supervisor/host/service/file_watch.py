"""Learns from inotify(7) that a file was deleted, renamed or replaced, or that something in a folder changed."""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

POLL_S = 5.0  # where inotify can't be had: its instances are limited for each user
READ_BYTES = 65536
# <sys/inotify.h>
IN_MODIFY, IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x8, 0x40, 0x80, 0x100, 0x200
IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF = 0x4, 0x400, 0x800  # IN_ATTRIB: also the number of its names
IN_ENTRIES = IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE

_libc = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Calls `on_event`, in the running loop, when something may have happened to the name of the file `path`.

    Polls where the kernel can't tell.
    """

    def __init__(self, path: Path, on_event: Callable[[], None]) -> None:
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._descriptor = _watch_name(path)
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._read)
        else:
            self._timer = self._loop.call_later(POLL_S, self._poll)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, READ_BYTES)
        self._on_event()

    def _poll(self) -> None:
        self._timer = self._loop.call_later(POLL_S, self._poll)
        self._on_event()

    def close(self) -> None:
        """Watches no more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class FolderWatch:
    """Calls `on_event`, in the running loop, when something changes in the folder that has the name `path`."""

    def __init__(self, path: Path, on_event: Callable[[], None]) -> None:
        self._path = path
        self._on_event = on_event
        self._loop = asyncio.get_running_loop()
        self._watch = -1
        self._descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._errno = ctypes.get_errno()
        if self._descriptor >= 0:
            self._loop.add_reader(self._descriptor, self._read)

    def follow(self) -> bool:
        """Watches the folder that has the name now; True if that is another one than before. Not for the loop's thread.

        The kernel numbers watches anew when a folder is made anew. Raises OSError if it can't be watched.
        """
        if self._descriptor < 0:
            raise OSError(self._errno, os.strerror(self._errno))
        watch = int(_libc.inotify_add_watch(self._descriptor, os.fsencode(self._path), IN_ENTRIES | IN_ATTRIB))
        if watch < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if watch == self._watch:
            return False
        if self._watch >= 0:
            _libc.inotify_rm_watch(self._descriptor, self._watch)  # fails if that folder was removed
        self._watch = watch
        return True

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._descriptor, READ_BYTES)
        self._on_event()

    def close(self) -> None:
        """Watches no more."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


def _watch_name(path: Path) -> int:
    """An inotify descriptor for the file; -1 if there can't be one."""
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor < 0:
        return -1
    if _libc.inotify_add_watch(descriptor, os.fsencode(path), IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF) < 0:
        os.close(descriptor)
        return -1
    return descriptor
