"""Opens what lies in a folder of a job's user without asking a file system that this user has mounted there.

The user owns the folder, so it may mount one of its own over it, or over a file in it (FUSE): any look at that, even
stat(2), then waits for as long as a program of the user's likes. Opening with O_PATH asks no file system, and the
kernel says of such a descriptor on which mount it is. What is on another one than the folder above is left alone, and
the rest is opened by the descriptor that was looked at, so that nothing can be mounted in between.

What a caller gets is in memory or on the disk of the folder above: whoever trusts that need not wait for anything.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def mount_of(descriptor: int) -> str | None:
    """The number of the mount that an open file is on, for which no file system is asked; None if it is not told."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
        return next((line for line in lines if line.startswith("mnt_id:")), None)
    return None


@contextlib.contextmanager
def folder_of_user(path: Path) -> Iterator[int]:
    """A descriptor (O_PATH) of a folder, to open what is in it with `open_in`. The folder above is trusted.

    Raises OSError: EXDEV if something is mounted over it, ENOTDIR also for a symbolic link.
    """
    above = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = _look(path.name, _LOOK | os.O_DIRECTORY, above)
    finally:
        os.close(above)
    try:
        yield folder
    finally:
        os.close(folder)


def open_in(folder: int, name: str, flags: int) -> int:
    """A descriptor of what is in an open folder; of a symbolic link only with O_PATH. Never waits for a named pipe.

    Raises OSError, EXDEV if something is mounted over it.
    """
    seen = _look(name, _LOOK, folder)
    if flags & os.O_PATH:
        return seen
    try:
        return os.open(f"/proc/self/fd/{seen}", flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(seen)


def open_in_folder_of_user(folder: Path, name: str, flags: int) -> int:
    """As `open_in`, of one file."""
    with folder_of_user(folder) as descriptor:
        return open_in(descriptor, name, flags)


def _look(name: str, flags: int, inside: int) -> int:
    seen = os.open(name, flags, dir_fd=inside)
    if mount_of(seen) != mount_of(inside):
        os.close(seen)
        raise OSError(errno.EXDEV, "something is mounted over it", name)
    return seen
