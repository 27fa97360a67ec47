"""Learns from inotify(7) that a file was deleted, renamed or replaced; polls where the kernel can't tell."""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Callable
from pathlib import Path

POLL_S = 5.0  # where inotify can't be had: its instances are limited for each user
IN_ATTRIB, IN_DELETE_SELF, IN_MOVE_SELF = 0x4, 0x400, 0x800  # <sys/inotify.h>; IN_ATTRIB: also the number of its names

_libc = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Calls `on_event`, in the running loop, when something may have happened to the name of the file `path`."""

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
            os.read(self._descriptor, 65536)
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


def _watch_name(path: Path) -> int:
    """An inotify descriptor for the file; -1 if there can't be one."""
    descriptor = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if descriptor < 0:
        return -1
    if _libc.inotify_add_watch(descriptor, os.fsencode(path), IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF) < 0:
        os.close(descriptor)
        return -1
    return descriptor
