"""Dies in the middle of a step, in the way that a file says: `raise`, `exit`, `segv`, `abort`, `kill`, `memory` (an
error for a lack of it), `eat` (all memory that its control group has), or `copy N`: before the Nth line of what copies
the state into memory, on whichever thread. Or, if there is a file `die_restoring` with N when it starts, before the Nth
line of what restores it from there."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_SIGNALS = {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "kill": signal.SIGKILL}
_COPYING = (
    "worker/saving/memory_file.py",
    "worker/saving/memory_checkpoint.py",
    "protocol/memory_tier/layout.py",
    "worker/checkpoint/bundle_writer.py",
)


class DeathAtLine:
    """Watches the lines of what copies the state, if this process was asked to."""

    def __init__(self) -> None:
        self._lines_left = 0

    def watch(self) -> None:
        """On this thread, and on those that it starts from now on."""
        sys.settrace(self._on_call)
        threading.settrace(self._on_call)

    def die_before(self, line: int) -> None:
        """Dies before the `line`th line from now on."""
        self._lines_left = line

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._on_line if frame.f_code.co_filename.endswith(_COPYING) else None

    def _on_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and self._lines_left:
            self._lines_left -= 1
            if not self._lines_left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self._on_line


def die_restoring_if_told(folder: Path, at_line: DeathAtLine) -> None:
    """Will die while it restores from memory, if there is a file `die_restoring` in the folder, and deletes that."""
    path = folder / "die_restoring"
    if path.exists():
        at_line.watch()
        at_line.die_before(int(path.read_text()))
        path.unlink()


def die_if_told(folder: Path, at_line: DeathAtLine) -> None:
    """Dies, or will, if there is a file `die` in the folder, and deletes that."""
    path = folder / "die"
    if not path.exists():
        return
    how = path.read_text()
    path.unlink()
    if how == "raise":
        raise RuntimeError("told to")
    if how == "memory":
        raise MemoryError("told to")
    if how == "exit":
        os._exit(3)
    eaten = []
    while how == "eat":
        eaten.append(b"x" * (1 << 20))
    if how.startswith("copy "):
        at_line.die_before(int(how.removeprefix("copy ")))
        return
    os.kill(os.getpid(), _SIGNALS[how])


def rest_of_step(folder: Path, began: float, step_s: float) -> None:
    """Waits until a step that began then has taken its time; not if there is a file `hurry`."""
    if not (folder / "hurry").exists():
        time.sleep(max(0.0, step_s - (time.monotonic() - began)))
