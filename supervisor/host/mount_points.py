"""Mount points above a path, as the kernel and /etc/fstab have them. Looks at no path, so nothing here can hang."""

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from supervisor.protocol import mounts

FSTAB = Path("/etc/fstab")
_OCTAL = re.compile(r"\\([0-7]{3})")


def mounted_point(path: Path) -> str | None:
    """The mount point that `path` (absolute) is below by its text, links not followed; None if that can't be read."""
    with contextlib.suppress(OSError):
        return max(_above(path, _mounted()), key=len, default=None)
    return None


def unmounted_point(path: Path, fstab: Path = FSTAB) -> str | None:
    """The mount point of fstab that `path` is below and that is not mounted now; None if there is none."""
    with contextlib.suppress(OSError):
        present = set(_mounted())
        return max((point for point in _above(path, _expected(fstab)) if point not in present), key=len, default=None)
    return None


def _above(path: Path, points: Iterator[str]) -> Iterator[str]:
    return (point for point in points if path.is_relative_to(point))


def _mounted() -> Iterator[str]:
    for line in mounts.MOUNTINFO.read_bytes().splitlines():
        fields = line.split(b" ")
        if len(fields) > 4:
            yield _unescaped(os.fsdecode(fields[4]))


def _expected(fstab: Path) -> Iterator[str]:
    """Raises OSError if there is no fstab, as in containers."""
    for line in fstab.read_text(errors="replace").splitlines():
        fields = line.split()
        if len(fields) > 2 and not fields[0].startswith("#") and fields[1].startswith("/") and fields[2] != "swap":
            yield os.path.normpath(_unescaped(fields[1]))


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
