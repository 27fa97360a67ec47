"""The number of a file's format: which files this version can use, and what it does with one of a later version.

Every file that outlives a version holds the number of its format under `format`; one that holds none is of format 1. A
later version raises the number where an earlier one would misread the file. Fields that an earlier version can ignore
are added without it. A file of a later format is not damaged, so nothing may be concluded from it and it is never
rewritten, moved or deleted: whoever reads it says so, with `NewerFormat`. docs/upgrades.md lists the files.
"""

import contextlib
import errno
import json
from collections.abc import Mapping
from typing import Any

KEY = "format"


class UnusableFile(OSError):
    """What a file says is not known; the text says why and what to do.

    An OSError, as it proves nothing about the content: what waits for a disk that can't be read waits for this, too.
    """

    def __str__(self) -> str:
        return str(self.strerror)


class NewerFormat(UnusableFile):
    """A later version of stepkeeper wrote the file, so this one can't use it."""

    def __init__(self, name: str, number: int, newest: int) -> None:
        super().__init__(
            errno.ENOTSUP,
            f"a newer stepkeeper wrote {name} (format {number}, this version reads up to {newest}); install that "
            f"version again",
        )


def check_format(body: Mapping[str, Any], newest: int, name: str) -> int:
    """The format of the file `name` with this content, from 1 to `newest`.

    Raises NewerFormat, and ValueError if it is no such number.
    """
    number = body.get(KEY, 1)
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name} has format {number!r:.40}, which is no format's number")
    if number > newest:
        raise NewerFormat(name, number, newest)
    return number


def refuse_newer(content: bytes, newest: int, name: str) -> None:
    """To be called before the file `name`, which has this content, is replaced. Raises NewerFormat; what is damaged may
    be replaced."""
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        check_format(json.loads(content), newest, name)
