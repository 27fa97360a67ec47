"""Where an attempt's output begins in a log file, so that it is found again after rotations and compression."""

import os
import time
import zlib
from typing import NamedTuple

DIGEST_BYTES = 256

COMPRESSED_NAME = "inode-{}"
"""The name in the header of a compressed backup (RFC 1952, FNAME): says which file it was."""


class LogPosition(NamedTuple):
    """The file with this inode, behind `offset` bytes, noted at `at_ns` (Unix time).

    Inodes are used again, and a file may be emptied and grow again: `digest`, of the bytes before the position, and
    `at_ns` tell such files from the one that was meant.
    """

    inode: int
    offset: int
    digest: int
    at_ns: int


def digest_before(content: bytes) -> int:
    """The digest of a position behind `content`, the last DIGEST_BYTES before it or all that there are."""
    return zlib.crc32(content)


def position_in(descriptor: int, offset: int) -> LogPosition:
    """The position behind `offset` bytes of a file that is open for reading. Raises OSError."""
    begin = max(0, offset - DIGEST_BYTES)
    digest = digest_before(os.pread(descriptor, offset - begin, begin))
    return LogPosition(os.fstat(descriptor).st_ino, offset, digest, time.time_ns())
