"""Limits that the kernel holds processes to: the daemon's own number of open files, and what programs are given."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator, Mapping

from supervisor.host.processes.spawning import SpawnError

Limits = Mapping[str, int]
"""By key of the configuration (`limit_nofile`): the limit, bytes or a number; UNLIMITED for none."""

UNLIMITED = resource.RLIM_INFINITY

RESOURCES = {
    "limit_nofile": resource.RLIMIT_NOFILE,
    "limit_nproc": resource.RLIMIT_NPROC,
    "limit_core": resource.RLIMIT_CORE,
    "limit_memlock": resource.RLIMIT_MEMLOCK,
}
MOST_FILES = 1 << 20  # the kernel's own bound for a process (fs.nr_open) unless somebody raised it
HEADROOM = 32  # files that starting a process, and other threads meanwhile, may open

_inherited = {resource.RLIMIT_NOFILE: resource.getrlimit(resource.RLIMIT_NOFILE)}
"""What programs get: as this process was started, or as `raise_inherited_limits` left it."""


class LimitError(Exception):
    """This process may have less than it must; the text says what to do."""


def raise_inherited_limits(minfds: int | None, minprocs: int | None) -> None:
    """Raises what this process was started with, and so what programs get, to at least this. Raises LimitError."""
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
                f"{key} is {least}, but this process may have no more than {hard}; lower it, or raise the limit where "
                f"supervisord is started ({name}= in its systemd unit, ulimit -H{flag} elsewhere)"
            ) from error
    _inherited[resource.RLIMIT_NOFILE] = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_own_nofile() -> None:
    """Lets this process open as many files as it is allowed to: a thousand programs need three descriptors each.

    Programs get what the daemon was started with, as some close, or select among, all that they might open.
    """
    soft, hard = _inherited[resource.RLIMIT_NOFILE]
    wanted = MOST_FILES if hard == UNLIMITED else min(hard, MOST_FILES)
    if soft != UNLIMITED and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def restore_own_nofile() -> None:
    """Takes that back, for who is executed in this process' place."""
    resource.setrlimit(resource.RLIMIT_NOFILE, _inherited[resource.RLIMIT_NOFILE])


def can_use_inherited_nofile() -> bool:
    """Whether this process can live with what it was started with for a moment; it may have more files open by now."""
    probe = os.dup(0)  # the lowest number that is free
    os.close(probe)
    return probe + HEADROOM < _inherited[resource.RLIMIT_NOFILE][0]


@contextlib.contextmanager
def inherited_nofile() -> Iterator[None]:
    """What is started inside has from its first instruction what this process was started with. Ask `can_lend`.

    For the thread of the event loop alone: two that lend could not know what to take back.
    """
    own = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, _inherited[resource.RLIMIT_NOFILE])
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, own)


def limit_setter(program: str, limits: Limits) -> Callable[[], None]:
    """What a child has to call, before it becomes the program, to be held to these limits.

    Raises SpawnError if one is above what this process may give.
    """
    pairs = []
    for key, value in limits.items():
        number = RESOURCES[key]
        _, hard = resource.getrlimit(number)
        if hard != UNLIMITED and (value == UNLIMITED or value > hard):
            raise SpawnError(
                f"cannot start {program}: {key} is {'unlimited' if value == UNLIMITED else value}, but the daemon "
                f"itself may have no more than {hard}; lower it, or raise the daemon's (Limit{key[6:].upper()}= in "
                f"its systemd unit, ulimit -H elsewhere)",
                permanent=True,
            )
        pairs.append((number, (value, value)))
    if resource.RLIMIT_NOFILE not in dict(pairs):
        pairs.append((resource.RLIMIT_NOFILE, _inherited[resource.RLIMIT_NOFILE]))
    return lambda: _set(pairs)


def _set(pairs: list[tuple[int, tuple[int, int]]]) -> None:
    for number, pair in pairs:
        resource.setrlimit(number, pair)
