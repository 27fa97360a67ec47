"""What can be wrong with a checkpoint."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

DAMAGE_ERRNOS = frozenset(
    {
        errno.ENOENT,
        errno.EIO,
        errno.EUCLEAN,  # this and the next of ext4, XFS and others: what they keep of the file itself is damaged
        errno.EBADMSG,
        errno.ELOOP,
        errno.EISDIR,
        errno.ENXIO,
        errno.ENOTDIR,
    }
)
"""Errors that mean the file is damaged. Any other (EACCES, EMFILE) says nothing about the file and is raised."""


@dataclass(frozen=True, slots=True)
class RejectedCheckpoint:
    """A checkpoint that is not restored: its name, and the reason in words."""

    name: str
    reason: str


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
    """Turns OSErrors that mean damage of the file called `name` into BundleError."""
    try:
        yield
    except OSError as error:
        if error.errno not in DAMAGE_ERRNOS:
            raise
        if error.errno == errno.ENOENT:
            raise BundleError(Damage.MISSING, f"{name} is missing") from error
        raise BundleError(Damage.UNREADABLE, f"{name}: {error.strerror}") from error
