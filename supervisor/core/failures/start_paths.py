"""Whether a process that could not be started waits for its disk, as what it is started from can't be reached.

At a boot the daemon may come before a disk, and a network file system may be away for a while. What a program is
started from is then missing, exactly as after a mistake in its configuration. The two are told apart by what is known:

    it was started from the same paths before                                 wait
    the missing path is below a mount point of the host's tables, not mounted wait
    it is below the mount point of the job's last checkpoints, not mounted    wait
    the file system answers with an error (EIO, a stale handle, …)            wait
    none of these                                                             a mistake: fail at once

Waiting is as for a lost checkpoint directory (`storage.py`): BACKOFF without a process, against no budget. Whenever a
pause ends, the runner looks whether the process could be started (LookAtStartPaths).
"""

import errno
from dataclasses import dataclass
from pathlib import PurePath

_AWAY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES})
"""What is missing, or an empty folder in its place: by itself no sign of a disk."""

_FAILING = frozenset(
    {errno.ENOTCONN, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENXIO, errno.ENODEV}
)
"""Only a file system whose disk or server is away says these."""


@dataclass(frozen=True, slots=True)
class UnreachablePath:
    """What a process could not be started from. `mount_point`: where the file system is mounted that it is on now.

    `unmounted`: the mount point that it is below and that is not mounted although a table of the host has it, in words.
    """

    path: str
    errno: int
    mount_point: str | None = None
    unmounted: str | None = None


def waits_for_disk(missing: UnreachablePath, has_worked: bool, last_mount: str | None) -> str | None:
    """Why a failed start waits, in words; None if it does not. `last_mount`: of the checkpoints, as in facts."""
    if missing.errno in _FAILING:
        return "its file system fails"
    if missing.errno not in _AWAY:
        return None
    if missing.unmounted is not None:
        return missing.unmounted
    point = (last_mount or "").rpartition(" at ")[2]
    if point not in ("", "/") and point != missing.mount_point and PurePath(missing.path).is_relative_to(point):
        return f"{point} is not mounted, where its last checkpoints were"
    return "it was started from there before" if has_worked else None
