"""Whether a process that could not be started waits for its disk: its `directory` or its command can't be reached now.

At a boot the daemon may come before a disk, and a network file system may be away for a while. What a program is started
from is then missing, exactly as after a mistake in its configuration. The two are told apart by what is known:

    it was started from the same paths before                                 wait
    the missing path is below a mount point of fstab that is not mounted      wait
    it is below the mount point of the job's last checkpoints, not mounted    wait
    the file system answers with an error (EIO, a stale handle, …)            wait
    none of these                                                             a mistake: fail at once

Waiting is as for a lost checkpoint directory (`storage.py`): BACKOFF without a process, against no budget. Whenever a
pause ends, the runner looks whether the process could be started (LookAtStartPaths).
"""

import errno
from pathlib import PurePath

from supervisor.core.program.events import SpawnFailed

_AWAY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES})
"""What is missing, or an empty folder in its place: by itself no sign of a disk."""

_FAILING = frozenset(
    {errno.ENOTCONN, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ENXIO, errno.ENODEV}
)
"""Only a file system whose disk or server is away says these."""


def waits_for_disk(event: SpawnFailed, has_worked: bool, last_mount: str | None) -> str | None:
    """Why the failed start waits, in words; None if it does not. `last_mount`: of the checkpoints, as in facts."""
    if event.path is None or event.errno is None:
        return None
    if event.errno in _FAILING:
        return "its file system fails"
    if event.errno not in _AWAY:
        return None
    if event.unmounted is not None:
        return f"{event.unmounted} is in /etc/fstab and not mounted"
    point = (last_mount or "").rpartition(" at ")[2]
    if point not in ("", "/") and point != event.mount_point and PurePath(event.path).is_relative_to(point):
        return f"{point} is not mounted, where its last checkpoints were"
    return "it was started from there before" if has_worked else None
