"""Sees to it that the kernel, when memory runs out, takes a worker before the daemon."""

import contextlib
from pathlib import Path

from supervisor.host.resources import kernel_files


def make_eligible(pid: int, wanted: int | None = None) -> None:
    """Takes from a new process the protection that it inherited from the daemon (OOMScoreAdjust= of its unit).

    `wanted`, from 0 to 1000: how much more the kernel is to like it as a victim.

    What it started within its first moments keeps it. A process that is gone, or became another user's, is left alone.
    """
    score = f"/proc/{pid}/oom_score_adj"
    with contextlib.suppress(OSError):
        if wanted is not None or int(kernel_files.content(score)) < 0:
            Path(score).write_text(str(wanted or 0))


def give(pid: int, wanted: int | None) -> None:
    """Gives a process what `wanted` says (None: the daemon's own, at least 0), though it was started with more."""
    with contextlib.suppress(OSError):
        own = max(0, int(Path("/proc/self/oom_score_adj").read_bytes()))
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(own if wanted is None else wanted))
