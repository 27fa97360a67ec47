"""Sees to it that the kernel, when memory runs out, takes a worker before the daemon."""

import contextlib
from pathlib import Path


def make_eligible(pid: int, wanted: int | None = None) -> None:
    """Takes from a new process the protection that it inherited from the daemon (OOMScoreAdjust= of its unit).

    `wanted`, from 0 to 1000: how much more the kernel is to like it as a victim.

    What it started within its first moments keeps it. A process that is gone, or became another user's, is left alone.
    """
    score = Path(f"/proc/{pid}/oom_score_adj")
    with contextlib.suppress(OSError):
        if wanted is not None or int(score.read_bytes()) < 0:
            score.write_text(str(wanted or 0))
