"""What can be wrong with a checkpoint, and why an older one is restored instead."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

DAMAGE_ERRNOS = frozenset(
    {
        errno.ENOENT,
        errno.EUCLEAN,  # this and the next of ext4, XFS and others: what they keep of the file itself is damaged
        errno.EBADMSG,
        errno.ELOOP,
        errno.EISDIR,
        errno.ENXIO,
        errno.ENOTDIR,
    }
)
"""Errors that mean the file is damaged. Any other (EACCES, EMFILE) says nothing about the file and is raised.

EIO is not among them: a network file system whose server is away, or a fuse program that died, answers with it too.
"""


class UnreadableCheckpoint(OSError):
    """A checkpoint could not be read, for a reason that may pass and proves nothing about it. `name`: which one.

    `has_older`: there are older ones.
    """

    def __init__(self, number: int, text: str, name: str, has_older: bool) -> None:
        super().__init__(number, text)
        self.name = name
        self.has_older = has_older


class OlderBecause(StrEnum):
    """Why a start begins from an older checkpoint than the newest one; `checkpoints/account.py` says what proves it."""

    OPERATOR = "operator"  # a start request said so
    ROLLED_BACK = "rolled-back"  # training diverged after it
    UNFIT = "does-not-fit"  # the program can't restore it
    SUSPECT = "suspect"  # attempts keep dying right after restoring it
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    LEFT_BEHIND = "left-behind"  # another host has gone on with the run from an earlier one
    DELETED = "deleted"  # or moved, by somebody, from the same directory on the same file system


@dataclass(frozen=True, slots=True)
class RejectedCheckpoint:
    """A checkpoint that is not restored: its name, and the reason in words.

    `is_recorded`: False if it is in quarantine, and nobody could write down why; then `because` says nothing.
    """

    name: str
    reason: str
    because: OlderBecause = OlderBecause.DAMAGED
    is_recorded: bool = True


class Damage(StrEnum):
    """The kinds of damage, and other causes for which a checkpoint can't be verified."""

    MISSING = "missing"
    TRUNCATED = "truncated"
    CHECKSUM = "checksum"
    MALFORMED = "malformed"
    UNREADABLE = "unreadable"
    UNSUPPORTED = "unsupported"


class BundleError(ValueError):
    """A TensorFlow checkpoint could not be verified; the text says which file and why, `damage` of which kind."""

    def __init__(self, damage: Damage, text: str) -> None:
        super().__init__(text)
        self.damage = damage


@contextmanager
def errors_as_damage(name: str) -> Iterator[None]:
    """Turns OSErrors that mean damage of the file called `name` into BundleError.

    So does EIO, as nothing is moved for it.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in DAMAGE_ERRNOS | {errno.EIO}:
            raise
        if error.errno == errno.ENOENT:
            raise BundleError(Damage.MISSING, f"{name} is missing") from error
        raise BundleError(Damage.UNREADABLE, f"{name}: {error.strerror}") from error
