"""How fast a mirror process uploads. A module of its own, as both the process and what it does for a run need it."""

import threading
from collections.abc import Iterator
from io import RawIOBase

from supervisor.protocol.mirror.store import PART_BYTES


class RateLimiter:
    """Holds uploads back to `bytes_per_s` (None: not at all). Another thread may lift that at any time."""

    def __init__(self, bytes_per_s: float | None = None) -> None:
        self._bytes_per_s = bytes_per_s
        self._is_lifted = threading.Event()

    def set_lifted(self, is_lifted: bool) -> None:
        """Lets uploads go as fast as they can, at once, or no more."""
        if is_lifted:
            self._is_lifted.set()
        else:
            self._is_lifted.clear()

    def pieces_of(self, file: RawIOBase) -> Iterator[bytes]:
        """The content of a file in pieces; each takes its time, the last one too, so a small file is no exception."""
        while piece := file.read(PART_BYTES):
            yield piece
            if self._bytes_per_s is not None:
                self._is_lifted.wait(len(piece) / self._bytes_per_s)
