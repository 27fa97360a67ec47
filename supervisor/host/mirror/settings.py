"""What a mirror process is told on its command line, as JSON."""

from dataclasses import dataclass
from pathlib import Path

from supervisor.host.children import Identity


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """`url`: of the store, as configured; `run`: the run's own prefix below it; `folder`: the job's checkpoint_dir.

    `keep`: how many remote checkpoints stay. `bytes_per_s`: of uploads, at most, unless that is lifted. `identity`:
    None keeps the daemon's.
    """

    url: str
    run: str
    folder: Path
    keep: int
    bytes_per_s: float | None = None
    identity: Identity | None = None
