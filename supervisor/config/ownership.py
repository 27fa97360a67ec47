"""Whether other users could rewrite the configuration of a root daemon, and with it run anything as root."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from supervisor.ini.problems import Location, Problem

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def problems_of_ownership(files: Iterable[Path]) -> list[Problem]:
    """A problem for each file, and each folder of one, that others than its owner and root may write to.

    Their owner is trusted: whoever starts a daemon as root with a user's file has chosen to. Empty unless we are root.
    """
    if os.geteuid() != 0:
        return []
    problems, folders = [], set[Path]()
    for file in files:
        path = file.resolve()  # a link in the folder may be replaced as well as the file that it leads to
        for each in (path, path.parent, file.parent.resolve()):
            if each not in folders and _is_writable_by_others(each):
                problems.append(Problem(Location(file), _text(each, path)))
            folders.add(each)
    return problems


def _text(place: Path, file: Path) -> str:
    which = "this file" if place == file else f"its folder {place}"
    return (
        f"cannot run as root from {which}: other users may write to it, and so run anything as root; "
        f"take that away (chmod go-w {place}), or keep the file elsewhere"
    )


def _is_writable_by_others(path: Path) -> bool:
    try:
        status = path.stat()
        is_read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)  # as Kubernetes mounts a ConfigMap, with mode 0777
    except OSError:
        return False
    if is_read_only or (stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX):
        return False  # sticky: others can't replace what is there
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return False  # a pipe of the shell's: <(…)
    others = status.st_mode & _OTHERS
    return bool(others & stat.S_IWOTH or (others and status.st_gid != 0))
