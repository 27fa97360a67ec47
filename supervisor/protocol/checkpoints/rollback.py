"""Gives up the newest checkpoints of a job whose training diverged, so that nothing chooses them again."""

from pathlib import Path

from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.manifest import ManifestError
from supervisor.protocol.damage import RejectedCheckpoint


def roll_back(directory: Path, before: int) -> tuple[RejectedCheckpoint, ...]:
    """Puts the checkpoints of step `before` and later into quarantine, and says which.

    Only if one of an earlier step is proven whole; else nothing, as what is there is better than nothing.
    Raises OSError if the directory can't be read or changed.
    """
    names = selection.committed(directory)
    if not any(_is_whole(directory / str(name)) for name in names if name.step < before):
        return ()
    reason = f"given up: training diverged at about step {before}, and this is not from before that"
    given_up = [name for name in names if name.step >= before]
    for name in given_up:
        selection.quarantine(directory, name, reason)
    return tuple(RejectedCheckpoint(str(name), reason) for name in given_up)


def _is_whole(folder: Path) -> bool:
    try:
        manifest.verify(folder)
    except ManifestError:
        return False
    return True
