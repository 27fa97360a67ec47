"""What a disk that takes no more has used up: its space, a quota, or the number of its files."""

import contextlib
import errno
import os
from pathlib import Path

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

SPARE_BYTES = 1 << 20  # some file systems count no free inodes once they have no free blocks


def full_disk_reason(error: OSError, path: Path) -> str:
    """Why a file system takes no more at `path`, which need not exist.

    "No space left on device" also stands for a file system that has space and no inodes: then that is said.
    """
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC and _has_only_inodes_used_up(path):
        return f"{reason}: it has free space, but no inodes for more files (`df -i`)"
    return reason


def _has_only_inodes_used_up(path: Path) -> bool:
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            disk = os.statvfs(place)
            return disk.f_files > 0 and disk.f_favail == 0 and disk.f_bavail * disk.f_frsize >= SPARE_BYTES
    return False
