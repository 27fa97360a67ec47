"""Keeps the newest checkpoint in the page cache, where memory allows, so that a restore does not wait for the disk.

Saves write past the page cache, which costs training least, so after the commit the disk has the only copy. A thread
then has the kernel read it back, which copies nothing and takes the processor a third of what writing through the cache
would. The checkpoint before it is dropped from the cache at the same time: there is one in it, whatever retention
keeps. All of this is a hint to the kernel. Whoever restores reads and verifies every byte, wherever it comes from.
"""

import contextlib
import os
import threading
from pathlib import Path

from supervisor.protocol import durable
from supervisor.protocol.available_memory import available_memory

SHARE = 4  # a checkpoint takes at most this part of the memory that is left: the rest is for training and its data
BURST_PIECES = 4  # of durable.PIECE_BYTES
PAUSE_S = 0.02  # after each burst, so at most 200 MB/s: the disk, and a virtual disk's host, have other work


def fits_in_cache(checkpoint_bytes: int, available_bytes: int) -> bool:
    """Whether a checkpoint may stay in the page cache, given the memory that is left with the cache counted as free."""
    return checkpoint_bytes * SHARE <= available_bytes


class CachedCheckpoint:
    """The checkpoint of one directory that is in the page cache. Not for two threads at once."""

    def __init__(self, directory: Path, name: str | None) -> None:
        """`name`: the checkpoint that was restored, which is in the cache by now; None if there was none."""
        self._directory = directory
        self._name = name
        self._stop = threading.Event()

    def replace(self, name: str, size_bytes: int) -> None:
        """Has another checkpoint take its place, on a thread of its own; returns at once."""
        self.stop()
        before, self._name, self._stop = self._name, name, threading.Event()
        work = (self._directory, before, name, size_bytes, self._stop)
        with contextlib.suppress(RuntimeError):  # no thread can be started: a limit was reached
            threading.Thread(target=_replace, args=work, name="stepkeeper-cache", daemon=True).start()

    def stop(self) -> None:
        """Ends what is being done, within PAUSE_S; what is in the cache stays there."""
        self._stop.set()


def _replace(directory: Path, before: str | None, name: str, size_bytes: int, stop: threading.Event) -> None:
    # One of them may be gone, and a disk may fail: whoever needs the files will say so. KeyError, ValueError: no /proc.
    with contextlib.suppress(OSError, KeyError, ValueError):
        if os.major((directory / name).stat().st_dev) == 0:
            return  # no disk: in memory already, or behind a network that would bring it a second time
        if before is not None and before != name:
            with contextlib.suppress(OSError):
                _drop(directory / before)
        if fits_in_cache(size_bytes, available_memory()[0]):
            _read(directory / name, stop)


def _drop(folder: Path) -> None:
    for path in folder.iterdir():
        with durable.open_regular(path) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(folder: Path, stop: threading.Event) -> None:
    for path in folder.iterdir():
        with durable.open_regular(path) as file:
            for offset in range(0, os.fstat(file.fileno()).st_size, durable.PIECE_BYTES):
                durable.read_ahead(file.fileno(), offset)
                if offset // durable.PIECE_BYTES % BURST_PIECES == BURST_PIECES - 1 and stop.wait(PAUSE_S):
                    return
