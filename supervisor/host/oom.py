"""Sees to it that the kernel, when memory runs out, takes a worker before the daemon."""

import contextlib
from pathlib import Path


def make_eligible(pid: int) -> None:
    """Takes from a new process the protection that it inherited from the daemon (OOMScoreAdjust= of its unit).

    What it started within its first moments keeps it. A process that is gone, or became another user's, is left alone.
    """
    score = Path(f"/proc/{pid}/oom_score_adj")
    with contextlib.suppress(OSError):
        if int(score.read_bytes()) < 0:
            score.write_text("0")
