"""Do all workers of a gang see one checkpoint directory? Asked before the first step.

A gang of which one worker has another directory under the chief's path would train and save, and could not go on from
what it saved.
"""

import platform
import secrets
import time
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.wire.exits import WorkerExit
from worker.data.collectives import Gang
from worker.process.attempt import Attempt

SHARED_S = 10.0  # until what one host has written is seen by all; network file systems take a second or three


def make_mark(directory: Path) -> Path:
    """A file of a name that nobody has looked for yet: a network file system remembers what was not there."""
    for left in directory.glob(f"{layout.GANG_MARK}*"):
        left.unlink(missing_ok=True)
    mark = directory / f"{layout.GANG_MARK}{secrets.token_hex(8)}"
    durable.write_file(mark, b"")
    return mark


def require_shared(mark: Path, gang: Gang, attempt: Attempt) -> None:
    """Ends all workers unless each of them sees the chief's `mark`."""
    is_seen = _is_seen(mark)
    missing = gang.sum([int(not is_seen)])[0]
    if gang.is_chief:
        mark.unlink(missing_ok=True)
    if missing:
        where = "" if is_seen else f" on {platform.node()}"
        who = f"{missing} of {gang.size} workers do" if is_seen else "this worker does"
        attempt.exit_with_error(
            WorkerExit.DIRECTORY_UNUSABLE,
            f"cannot train: checkpoint_dir {mark.parent}{where} must be shared by all nodes of the gang, and {who} "
            f"not see what the chief writes there; put it on a file system that all of them mount, or give the job a "
            f"mirror and checkpoint_dir_shared = false",
        )


def _is_seen(mark: Path) -> bool:
    deadline = time.monotonic() + SHARED_S
    while not mark.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
