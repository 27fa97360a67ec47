"""What one attempt printed, or what was added since a look, read from a log file and its backups."""

import contextlib
import errno
import gzip
import io
import os
import re
import stat
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from supervisor.host.logs.files.compression import SUFFIX
from supervisor.host.logs.files.positions import COMPRESSED_NAME, DIGEST_BYTES, LogPosition, digest_before, position_in
from supervisor.host.user_folders.guarded_open import open_guarded

MOST_FILES = 100  # that are looked at; each takes a descriptor
SEEK_S = 5.0  # in one compressed file, with the read behind it: what it was compressed from may be of any size
_SEEK_BYTES = 1 << 20
_HEAD_BYTES = 64  # holds a gzip header with a name of ours
_NAMED = 0x08  # RFC 1952: FLG.FNAME; we write no other optional field before it
_ORIGINAL = re.compile(COMPRESSED_NAME.format(r"(\d{1,20})").encode())


class OutputGone(Exception):
    """Nothing of the output is there any more; the text says why."""


class _PackedFile(io.FileIO):
    """The bytes of a compressed file, until the time `until` (monotonic seconds).

    The limit is here because some of them, such as empty gzip members, give nothing at all when they are unpacked.
    """

    until = float("inf")

    def read(self, size: int | None = -1, /) -> bytes:
        if time.monotonic() > self.until:
            raise OSError(errno.ETIMEDOUT, f"a compressed backup could not be read in {SEEK_S:g} s")
        return super().read(size) or b""


class _CompressedFile(gzip.GzipFile):
    def __init__(self, packed: _PackedFile) -> None:
        super().__init__(fileobj=packed, mode="rb")
        self.packed = packed

    def close(self) -> None:
        super().close()
        self.packed.close()


@dataclass(slots=True)
class _Part:
    """One file of the log, open; of it the bytes from `begin` to `end` belong to the attempt.

    `size` of a compressed file is what its trailer says, modulo 4 GiB (RFC 1952). `written_ns`: when it was written
    last (Unix time).
    """

    file: BinaryIO | _CompressedFile
    inode: int
    size: int
    written_ns: int
    begin: int = 0
    end: int = 0

    def seek(self, offset: int) -> None:
        """Goes to the byte at `offset`. Raises OSError, also if that takes too long."""
        if isinstance(self.file, _CompressedFile):
            self.file.packed.until = time.monotonic() + SEEK_S
            if offset < self.file.tell():
                self.file.rewind()
            while self.file.tell() < offset and self.file.read(min(_SEEK_BYTES, offset - self.file.tell())):
                pass
        self.file.seek(offset)

    def fits(self, position: LogPosition) -> bool:
        """Whether the bytes before the position are those that were there when it was noted."""
        if position.offset > self.size:
            return False
        begin = max(0, position.offset - DIGEST_BYTES)
        self.seek(begin)
        return digest_before(self.file.read(position.offset - begin)) == position.digest


class AttemptOutput:
    """The output, to be read from its beginning like a file. Close it. `remark` is read before it."""

    def __init__(self, parts: list[_Part], remark: bytes) -> None:
        self._parts = parts
        self._remark = remark

    @property
    def size(self) -> int:
        """Bytes that are left to read."""
        return sum(part.end - part.begin for part in self._parts)

    def skip_to_last(self, count: int) -> None:
        """Continues with the last `count` bytes; does nothing if there are fewer."""
        extra = max(0, self.size - count)
        if extra:
            self._remark = b""
        for part in self._parts:
            skipped = min(extra, part.end - part.begin)
            part.begin, extra = part.begin + skipped, extra - skipped

    def skip_written_before(self, at_ns: int) -> None:
        """Leaves out the files that nobody has written to since (Unix time)."""
        for part in self._parts:
            if part.written_ns < at_ns:
                part.begin = part.end

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to read, no remark either."""
        return not (self.size or self._remark)

    def end_position(self) -> LogPosition | None:
        """The position behind the last byte; None if that is in a compressed file. Raises OSError.

        It is not in a file to which nobody has written yet: where another program has moved the log and made a new one,
        the logger writes to the moved one for a moment.
        """
        written = [part for part in self._parts if part.end] or self._parts
        last = written[-1] if written else None
        if last is None or isinstance(last.file, _CompressedFile):
            return None
        return position_in(last.file.fileno(), last.end)

    def leave_out_first(self) -> None:
        """Leaves out what is left of the file that is read now, after that has failed."""
        _close(self._parts[:1])
        del self._parts[:1]

    def read(self, count: int) -> bytes:
        """At most `count` bytes; none at the end. Raises OSError, also for a damaged compressed backup."""
        if self._remark:
            remark, self._remark = self._remark, b""
            return remark
        while self._parts:
            part = self._parts[0]
            content = b""
            if part.begin < part.end:
                try:
                    part.seek(part.begin)
                    content = part.file.read(min(count, part.end - part.begin))
                except (EOFError, zlib.error) as error:
                    raise OSError(f"a compressed backup is damaged: {error}") from error
            if content:
                part.begin += len(content)
                return content
            part.file.close()
            del self._parts[0]
        return b""

    def close(self) -> None:
        """Closes the files."""
        _close(self._parts)
        self._parts = []


def open_attempt_output(path: Path, start: LogPosition, end: LogPosition | None, if_late: bytes) -> AttemptOutput:
    """What stands between `start` and `end` (None: the log's end) in the log at `path` and its backups.

    `if_late`: what is read first if the beginning was rotated away or the file was emptied since.

    Raises OSError, and OutputGone if all of it is rotated away or the file was emptied since.
    """
    parts = _open_files(path)
    try:
        begins_late = _keep_between(parts, start, end)
    except BaseException as error:
        _close(parts)
        if isinstance(error, EOFError | zlib.error):
            raise OSError(f"a compressed backup is damaged: {error}") from error
        raise
    return AttemptOutput(parts, if_late if begins_late else b"")


def _keep_between(parts: list[_Part], start: LogPosition, end: LogPosition | None) -> bool:
    """Leaves only what is between the positions; returns whether the beginning is missing. Raises OutputGone."""
    if end is not None:
        last = _index_of(parts, end)
        if last is None or not parts[last].fits(end):
            raise OutputGone("it was rotated away, or its log was cleared")
        _close(parts[last + 1 :])
        del parts[last + 1 :]
        parts[-1].end = end.offset
    first = _index_of(parts, start)
    begins_late = first is None or not parts[first].fits(start)
    if first is not None:
        _close(parts[:first])
        del parts[:first]
    if not begins_late:
        parts[0].begin = start.offset
    if parts and parts[0].begin > parts[0].end:
        raise OutputGone("its log was emptied since")
    return begins_late


def _close(parts: list[_Part]) -> None:
    for part in parts:
        part.file.close()


def _index_of(parts: list[_Part], position: LogPosition) -> int | None:
    """The file that was meant: the newest of those that had its inode by then. An older one that was compressed gave
    its inode away, and one that is begun after the position was noted only has it."""
    for index, part in reversed([*enumerate(parts)]):
        before = parts[index - 1] if index > 0 and parts[index - 1].inode else None  # that is ours
        if part.inode == position.inode and (before is None or before.written_ns <= position.at_ns):
            return index
    return None


def _open_files(path: Path) -> list[_Part]:
    """The log and its backups, oldest first. Raises OSError."""
    parts: list[_Part] = []
    try:
        for number in range(MOST_FILES):
            part = _open(path if number == 0 else path.with_name(f"{path.name}.{number}"))
            if part is None and number > 0:
                break
            if part is not None:
                parts.append(part)
    except BaseException:
        _close(parts)
        raise
    return parts[::-1]


def _open(path: Path) -> _Part | None:
    """A log file, or the compressed form of it; None if there is neither."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = _open_regular(path)
        status = os.fstat(descriptor)
        return _Part(os.fdopen(descriptor, "rb"), status.st_ino, status.st_size, status.st_mtime_ns, end=status.st_size)
    with contextlib.suppress(FileNotFoundError):
        descriptor = _open_regular(path.with_name(path.name + SUFFIX))
        with os.fdopen(descriptor, "rb") as packed:
            head = packed.read(_HEAD_BYTES)
            status = os.fstat(descriptor)
            size = int.from_bytes(os.pread(descriptor, 4, max(0, status.st_size - 4)), "little")
            known = _ORIGINAL.match(head, 10) if len(head) > 10 and head[3] == _NAMED else None
            content = _CompressedFile(_PackedFile(f"/proc/self/fd/{descriptor}"))
            return _Part(content, int(known[1]) if known else 0, size, status.st_mtime_ns, end=size)
    return None


def _open_regular(path: Path) -> int:
    descriptor = open_guarded(path, os.O_RDONLY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(path)
    return descriptor
