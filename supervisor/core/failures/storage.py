"""How a job waits for its checkpoint directory, and which of its errors may pass.

Whether the directory lacks what was committed is decided by the account of progress (`protocol/checkpoints/account.py`,
`core/program/account.py`).

How storage is waited for
-------------------------
Waiting is BACKOFF with a reason, without a process, and counts against no budget. Whenever a pause ends (1, 2, 4 … 30
s) the runner looks at the directory (LookAtStorage), which costs one listing; once that finds what is missing, the
attempt starts. One checkpoint that can't be read although others can is waited for as well, but only for
UNREADABLE_WAIT_S: then the next older one is used, log and history say so, and it stays where it is.
"""

import errno
from dataclasses import dataclass

from supervisor.protocol.disk_space import DISK_FULL

LOOK_FIRST_S = 1.0  # a remount takes about a second
LOOK_LIMIT_S = 30.0  # one listing twice a minute costs nothing, and what a job waits for longer is a matter of hours
UNREADABLE_WAIT_S = 120.0  # a server that restarts is back by then; a bad sector is not
NO_ANSWER_S = 60.0  # how long a look may take before the next one is asked for

_HOST_ERRNOS = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR})
"""Not the storage's fault: the host lacks something. Such a failure counts against a budget."""

_WRONG_ANSWER_ERRNOS = frozenset({errno.EBADMSG, errno.EMSGSIZE})
"""From `checkpoint_process`: the process gave no valid answer."""

_NEVER_ERRNOS = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})
"""What the path names is no folder; waiting changes nothing."""

_REFUSAL_ERRNOS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""A mistake in a new job's configuration; for a folder that worked before, something that passes."""


@dataclass(frozen=True, slots=True)
class StorageWait:
    """A job waits for its checkpoint directory, since (monotonic seconds), and how often was looked since then.

    `unreadable`: it waits for one checkpoint only, and older ones can be read. `writing`: a worker could not write.
    """

    since: float
    looks: int = 0
    unreadable: bool = False
    writing: bool = False

    @property
    def pause_s(self) -> float:
        """Seconds until the next look."""
        return min(LOOK_LIMIT_S, LOOK_FIRST_S * 2.0 ** min(self.looks, 10))


def is_waited_for(number: int | None, has_worked: bool) -> bool:
    """Whether an error of the checkpoint directory may pass. `has_worked`: checkpoints were there before."""
    if number is None or number in _HOST_ERRNOS | _WRONG_ANSWER_ERRNOS | _NEVER_ERRNOS:
        return False
    return has_worked or number not in _REFUSAL_ERRNOS


def remedy_for(number: int | None, user: str) -> str:
    """What a person can do about an error of the checkpoint directory, which `user` uses."""
    if number in DISK_FULL:
        return "free space there; it is tried again by itself"
    if number == errno.EROFS:
        return "mount it for writing"
    if number != errno.ENOENT and is_waited_for(
        number, has_worked=False
    ):  # EIO, a stale handle, a server or a FUSE program that is gone
        return "make its disk or its server work; it is tried again by itself"
    return f"make it a folder that {user} can read and write"


def is_hosts_fault(number: int | None) -> bool:
    """Whether an error says nothing about the storage, and another attempt may not meet it."""
    return number in _HOST_ERRNOS | _WRONG_ANSWER_ERRNOS
