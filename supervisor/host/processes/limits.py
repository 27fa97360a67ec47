"""Resource limits (setrlimit(2)) of programs, and the number of open files of the daemon itself.

The daemon raises its own soft limit of open files at its start. Programs must not see that, as some close or select(2)
on all descriptors they might have, so a program starts with the limit the daemon was started with. Two ways lead
there: the daemon lowers its own limit for the moment of the start (`inherited_nofile`), which keeps vfork(2) possible,
or, if it has too many files open for that, the child lowers it after fork(2) (`limit_setter`).
"""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Mapping

from supervisor.host.processes.spawning import SpawnError

Limits = Mapping[str, int]
"""By the configuration's key (`limit_nofile`): bytes or a number; UNLIMITED for no limit."""

UNLIMITED = resource.RLIM_INFINITY

RESOURCES = {
    "limit_nofile": resource.RLIMIT_NOFILE,
    "limit_nproc": resource.RLIMIT_NPROC,
    "limit_core": resource.RLIMIT_CORE,
    "limit_memlock": resource.RLIMIT_MEMLOCK,
}
MOST_FILES = 1 << 20  # fs.nr_open, the kernel's own bound for a process, unless it was raised
HEADROOM = 32  # descriptors that starting a process, and other threads meanwhile, may need

_inherited = {resource.RLIMIT_NOFILE: resource.getrlimit(resource.RLIMIT_NOFILE)}
"""The limits for programs: those this process was started with, or that `raise_inherited_limits` set."""


class LimitError(Exception):
    """A limit can't be raised as the configuration asks; the text says what to do."""


def raise_inherited_limits(minfds: int | None, minprocs: int | None) -> None:
    """Raises the limits of this process and its programs to at least `minfds` and `minprocs`. Raises LimitError."""
    for key, least, number, name, flag in (
        ("minfds", minfds, resource.RLIMIT_NOFILE, "LimitNOFILE", "n"),
        ("minprocs", minprocs, resource.RLIMIT_NPROC, "LimitNPROC", "u"),
    ):
        soft, hard = resource.getrlimit(number)
        if least is None or soft == UNLIMITED or soft >= least:
            continue
        try:
            resource.setrlimit(number, (least, hard if hard == UNLIMITED else max(hard, least)))
        except (OSError, ValueError) as error:
            raise LimitError(
                f"cannot set {key} to {least}: the hard limit of this process is {hard}; lower {key}, or raise the "
                f"limit where supervisord is started ({name}= in its systemd unit, ulimit -H{flag} elsewhere)"
            ) from error
    _inherited[resource.RLIMIT_NOFILE] = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_own_nofile() -> None:
    """Raises this process's own limit of open files to the hard limit: each program needs three descriptors."""
    soft, hard = _inherited[resource.RLIMIT_NOFILE]
    wanted = MOST_FILES if hard == UNLIMITED else min(hard, MOST_FILES)
    if soft != UNLIMITED and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_own_nofile() -> None:
    """Undoes `raise_own_nofile`, before this process executes a new daemon."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _inherited[resource.RLIMIT_NOFILE])


def require_files(number: int, purpose: str) -> None:
    """Raises LimitError if this process may not have so many files open. `purpose`: what it needs them for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != UNLIMITED and soft < number:
        raise LimitError(
            f"cannot {purpose}: that takes {number} open files, and the hard limit of this process is {soft}; raise it "
            f"where the job is submitted or slurmd is started (ulimit -Hn)"
        )


def can_use_inherited_nofile() -> bool:
    """Whether this process has so few files open that it can lower its limit for a moment."""
    probe = os.dup(0)  # the lowest number that is free
    os.close(probe)
    return probe + HEADROOM < _inherited[resource.RLIMIT_NOFILE][0]


@contextlib.contextmanager
def inherited_nofile() -> Iterator[None]:
    """Lowers the limit of open files to the inherited one, for a process that is started inside the context.

    Check `can_use_inherited_nofile` first. For the thread of the event loop only: two threads would undo each other.
    """
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, _inherited[resource.RLIMIT_NOFILE])
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, own)


def limit_setter(program: str, limits: Limits) -> Callable[[], None]:
    """Returns the function that sets these limits in a child, between fork(2) and exec(2).

    Raises SpawnError if one is above the daemon's own hard limit.
    """
    pairs = []
    for key, value in limits.items():
        number = RESOURCES[key]
        _, hard = resource.getrlimit(number)
        if hard != UNLIMITED and (value == UNLIMITED or value > hard):
            raise SpawnError(
                f"cannot start {program}: {key} is {'unlimited' if value == UNLIMITED else value}, but the daemon's "
                f"own hard limit is {hard}; lower {key}, or raise the daemon's limit (Limit{key[6:].upper()}= in its "
                f"systemd unit, ulimit -H elsewhere)",
                permanent=True,
            )
        pairs.append((number, (value, value)))
    if resource.RLIMIT_NOFILE not in dict(pairs):
        pairs.append((resource.RLIMIT_NOFILE, _inherited[resource.RLIMIT_NOFILE]))
    return lambda: _set(pairs)


def _set(pairs: list[tuple[int, tuple[int, int]]]) -> None:
    for number, pair in pairs:
        resource.setrlimit(number, pair)
