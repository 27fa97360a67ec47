"""Mount points above a path: those that the kernel has, and those that the host's own tables say belong there.

A folder below the mount point of a disk that is not mounted looks like any other: empty, or an old copy. The tables of
the host tell the two apart: /etc/fstab, and the mount units that an administrator wrote for systemd.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import mounts

MAX_UNIT_BYTES = 65536


@dataclass(frozen=True, slots=True)
class MountTables:
    """Where a host says what belongs where. `unit_folders`: of systemd, but not those of packages: what lies there
    need not be wanted on this host."""

    fstab: Path = Path("/etc/fstab")
    unit_folders: tuple[Path, ...] = (Path("/etc/systemd/system"), Path("/run/systemd/system"))


HOST = MountTables()


@dataclass(frozen=True, slots=True)
class UnmountedPoint:
    """A mount point of a table of the host, on which nothing is mounted."""

    point: str
    table: Path

    def __str__(self) -> str:
        return f"{self.point[: mounts.MAX_TEXT]} is in {self.table} and not mounted"


def mounted_point(path: Path) -> str | None:
    """The mount point that `path` (absolute) is below by its text, links not followed; None if that can't be read."""
    with contextlib.suppress(OSError):
        return max(_above(path, _mounted()), key=len, default=None)
    return None


def unmounted_point(path: Path, tables: MountTables = HOST) -> UnmountedPoint | None:
    """The mount point of the tables that `path` (absolute) is below by its text, and that is not mounted now.

    None if there is none, or something else is mounted between the two. Looks at no path, so it can't hang.
    """
    return _find_unmounted(path, tables, str)


def missing_volume(folder: Path, tables: MountTables = HOST) -> UnmountedPoint | None:
    """As `unmounted_point`, with links followed, in the folder's path and in those of the tables: may hang with a disk.

    The path as it is written counts too: a link that lies on the missing disk leads nowhere.
    """
    paths = dict.fromkeys((Path(os.path.realpath(folder)), folder.absolute()))
    return next((found for path in paths if (found := _find_unmounted(path, tables, os.path.realpath))), None)


def _find_unmounted(path: Path, tables: MountTables, resolve: Callable[[str], str]) -> UnmountedPoint | None:
    with contextlib.suppress(OSError):
        present = set(_mounted())
        innermost = max(map(len, _above(path, present)), default=0)
        missing: list[tuple[int, UnmountedPoint]] = []
        for expected in _expected(tables):
            names = {expected.point, resolve(expected.point)}
            depth = max(map(len, _above(path, names)), default=0)
            if depth > innermost and not names & present:
                missing.append((depth, expected))
        return max(missing, key=lambda entry: entry[0], default=(0, None))[1]
    return None


def _above(path: Path, points: Iterable[str]) -> Iterator[str]:
    below = f"{path}/".replace("//", "/")
    return (point for point in points if below.startswith(point if point.endswith("/") else f"{point}/"))


def _mounted() -> Iterator[str]:
    """Raises OSError."""
    text = mounts.MOUNTINFO.read_text(errors="surrogateescape")
    return (mount.point for mount in mounts.parse_mountinfo(text).values())


def _expected(tables: MountTables) -> Iterator[UnmountedPoint]:
    with contextlib.suppress(OSError):  # containers have none
        for line in tables.fstab.read_text(errors="surrogateescape").splitlines():
            fields = line.split()
            if len(fields) > 2 and not fields[0].startswith("#") and fields[1].startswith("/") and fields[2] != "swap":
                yield UnmountedPoint(os.path.normpath(mounts.unescape(fields[1])), tables.fstab)
    for folder in tables.unit_folders:
        for unit in sorted(folder.glob("*.mount")):
            if (point := _where(unit)) is not None:
                yield UnmountedPoint(os.path.normpath(point), unit)


def _where(unit: Path) -> str | None:
    """The mount point of a unit; None if it says none, as one that is masked."""
    with contextlib.suppress(OSError):
        with unit.open(errors="surrogateescape") as file:
            lines = file.read(MAX_UNIT_BYTES).splitlines()
        points = [line.partition("=")[2].strip() for line in lines if line.replace(" ", "").startswith("Where=")]
        return next((point for point in reversed(points) if point.startswith("/") and "%" not in point), None)
    return None
