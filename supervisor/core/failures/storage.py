"""What the checkpoint directory is known to hold, and whether an attempt may begin from what is found there now.

How lost storage is told from a fresh start
-------------------------------------------
A job that finds no checkpoint begins at step 0. That is right the first time, and a disaster when the disk is only not
mounted. So the facts remember the last checkpoint that the job committed or restored: its directory, name and step, and
the file system that it was on (`KnownCheckpoint`; the ledger has it for the next daemon). What a selection finds is
compared with that (`protocol/checkpoints/loss.py`, which a worker without a daemon uses too):

    a step at least as high is there, also in quarantine      nothing is lost
    nothing is there                                          wait: not mounted, moved away, or deleted
    only lower steps, on another file system                  wait: an old copy below the mount point, or another disk
    only lower steps, on the same file system                 go on, and say so: somebody deleted the newest ones

Deletions of the daemon's own never look like a loss: retention leaves the newest one, quarantine is looked at too, and
after a rollback the checkpoint that was restored is the one that is known. Another `checkpoint_dir` in the
configuration is another place, of which nothing is known. To begin anew on purpose, an operator says so (`start
--from-scratch`); then nothing is known any more.

How storage is waited for
-------------------------
Waiting is BACKOFF with a reason, without a process, and counts against no budget. Whenever a pause ends (1, 2, 4 … 30
s) the runner looks at the directory (LookAtStorage), which costs one listing; once that finds what is missing, the
attempt starts. One checkpoint that can't be read although others can is waited for as well, but only for
UNREADABLE_WAIT_S: then the next older one is used, log and history say so, and it stays where it is.
"""

import errno
from dataclasses import dataclass

from supervisor.protocol.checkpoints import loss
from supervisor.protocol.checkpoints.loss import KnownCheckpoint, Loss

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


def is_hosts_fault(number: int | None) -> bool:
    """Whether an error says nothing about the storage, and another attempt may not meet it."""
    return number in _HOST_ERRNOS | _WRONG_ANSWER_ERRNOS


def find_loss(
    program: str, known: KnownCheckpoint | None, directory: str | None, found_step: int | None, mount: str | None
) -> Loss | None:
    """What is missing from the directory of a job, as `loss.find_loss`; None if nothing is, or it has no directory."""
    if directory is None:
        return None
    remedy = (
        f"mount the disk or put the folder back, and it goes on by itself; to give up what was trained, "
        f"supervisorctl start --from-scratch {program}"
    )
    return loss.find_loss(f"cannot train {program}", known, directory, found_step, mount, remedy)
