"""Whether other users could rewrite what root reads, such as the configuration, and with it run anything as root.

As sshd's StrictModes: each file, and every folder and link on the way to it from / on, must belong to root, and others
must not be able to write to it. So nobody can change, replace or move what the daemon, or supervisorctl, reads.

- In a folder with the sticky bit, such as /tmp, others can't replace what is root's, but can add files. So a file there
  may be used if it is root's, and a folder that [include] searches may not be such a folder.
- Whoever became root with sudo counts as root: they decide what runs as root, and often keep the file at home.
- On a read-only mount nobody can write, whatever the modes say: Kubernetes mounts a ConfigMap with mode 0777.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.ini.problems import Location, Problem

MAX_LINKS = 40  # as the kernel
OVERFLOW_UID = 65534  # whom the kernel shows in a user namespace for owners that have no number there
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def problems_of_ownership(
    files: Iterable[Path], folders: Iterable[tuple[Path, Location]], environment: Mapping[str, str]
) -> list[Problem]:
    """A problem for the first place on the way to each file that others than root decide about.

    `folders`: those that [include] searches for files, and the lines that say so. Empty unless we are root.
    """
    if os.geteuid() != 0:
        return []
    trusted = _trusted_uids(environment)
    problems, seen = [], set[Path]()
    named = [(file, Location(file)) for file in files]
    for path, location in [*named, *folders]:
        doubt = next(_doubts(path, trusted), None)
        if doubt is not None and doubt.place not in seen:
            seen.add(doubt.place)
            which = "this file" if doubt.place == path == location.file else f"its folder {doubt.place}"
            text = f"cannot run as root from {which}: {doubt.why}, and so run anything as root"
            problems.append(Problem(location, f"{text}; take that away ({doubt.remedy}), or keep the file elsewhere"))
    return problems


def why_not_as_root(file: Path, environment: Mapping[str, str]) -> str | None:
    """Why root must not trust a file that may not be there yet, and what to do; None if it may, or we are not root."""
    if os.geteuid() != 0:
        return None
    way = file if os.path.lexists(file) else file.parent
    doubt = next(_doubts(way, _trusted_uids(environment)), None)
    if doubt is None:
        return None
    return f"{doubt.place} is not root's alone: {doubt.why}; take that away ({doubt.remedy})"


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A place that others than root decide about."""

    place: Path
    why: str
    remedy: str


def _trusted_uids(environment: Mapping[str, str]) -> frozenset[int]:
    caller = environment.get("SUDO_UID", "")
    also = {int(caller)} if caller.isascii() and caller.isdecimal() and len(caller) < 11 else set()
    return frozenset({0} | also | ({OVERFLOW_UID} - _mapped_uids()))


def _mapped_uids() -> frozenset[int]:
    """OVERFLOW_UID, if it is a user of this user namespace, who could log in."""
    try:
        rows = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    except (OSError, ValueError):
        return frozenset({OVERFLOW_UID})
    is_mapped = any(first <= OVERFLOW_UID < first + count for first, _, count in rows)
    return frozenset({OVERFLOW_UID} if is_mapped else ())


def _doubts(path: Path, trusted: frozenset[int]) -> Iterator[_Doubt]:
    way = list(_way_to(path))
    for number, (place, status) in enumerate(way):
        if _is_read_only(place):
            continue
        if status.st_uid not in trusted:
            yield _Doubt(place, f"its owner, uid {status.st_uid}, may change it", f"chown root {place}")
        elif _is_writable_by_others(status):
            is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
            if is_sticky and number + 1 < len(way):
                continue  # what follows is asked for its owner, and others can't replace it
            may = "add files to it" if is_sticky else "write to it"
            yield _Doubt(place, f"other users may {may}", f"chmod go-w {place}")


def _is_writable_by_others(status: os.stat_result) -> bool:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return False  # a link's mode says nothing; a pipe of the shell's: <(…)
    others = status.st_mode & _OTHERS
    return bool(others & stat.S_IWOTH or (others and status.st_gid != 0))


def _is_read_only(path: Path) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every folder, link and file on the way from / to `path`, as far as there is one."""
    here, links = Path("/"), 0
    ahead = _parts(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow links
    with contextlib.suppress(OSError):
        yield here, here.lstat()
        while ahead:
            name = ahead.pop()
            if name == "..":
                here = here.parent  # its links have been followed
                continue
            place = here / name
            status = place.lstat()
            yield place, status
            if not stat.S_ISLNK(status.st_mode):
                here = place
                continue
            links += 1
            if links > MAX_LINKS:
                return
            target = str(place.readlink())
            here = Path("/") if target.startswith("/") else here
            ahead += _parts(target)


def _parts(path: str) -> list[str]:
    """The names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
