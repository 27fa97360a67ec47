"""Has this process write the stacks of its threads beside its pipes whenever the daemon asks, whatever it is at."""

import faulthandler
import os
from pathlib import Path

from supervisor.protocol import layout

_file: int | None = None  # kept open: the handler writes to the descriptor, also where nothing can be opened any more


def dump_stacks_on_signal(pipes: Path) -> None:
    """From now on the daemon's signal is answered, in C, at once, also inside a TensorFlow call. Raises OSError.

    The file is made last: it tells the daemon that the signal, which would end any other process, is safe.
    """
    global _file
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    waiting = pipes / f"{layout.STACKS}.new"
    _file = os.open(waiting, flags, 0o600)
    faulthandler.register(layout.STACKS_SIGNAL, file=_file, all_threads=True, chain=False)
    waiting.rename(pipes / layout.STACKS)
