"""Puts bytes on the disk so that they are there after a power cut, and reads them back to prove it.

The one place where bytes are written, synced and hashed. Order of a commit: write every file, the manifest last; sync
each of them; sync the folder; rename it; sync its parent. Before the rename nothing exists; after the last sync it
survives a power cut. `checkpoints/new_folder.py` does all of this for a folder whose files are written here.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import xxhash

READ_BYTES = 256 << 10  # fits into a core's cache: what was just read is hashed from there
AHEAD_BYTES = 32 << 20  # asked of the disk before they are read: half was slower, twice as much no quicker
PIECE_BYTES = 1 << 20  # of one request to read ahead: the kernel cuts off what is longer than the disk's own limit


def sync_file(path: Path) -> None:
    """Forces one file's content to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Forces a folder's entries (names, renames, deletions) to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Creates a folder and its parents where they don't exist, each of them on the disk; raises OSError.

    Else a power cut could take the folder away with all that was synced inside it.
    """
    if path.is_dir():
        return
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync_folder(path.parent)


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Creates or replaces `path` in one step: readers see the old content or the new, whole. `mode`: of the file."""
    temporary = path.with_name(f"{temporary_prefix(path.name)}{os.urandom(8).hex()}")
    try:
        with temporary.open("xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def temporary_prefix(name: str) -> str:
    """How the names begin of what `write_file` leaves behind if it is killed while it writes a file called `name`."""
    return f".{name}."


def commit_folder(partial: Path, final: Path, files: Iterable[str]) -> None:
    """Makes `partial` exist as `final`: syncs its `files`, itself, renames it and syncs the parent.

    Raises OSError, also where `final` already exists and is not empty; the checkpoint then does not exist.
    """
    for name in files:
        sync_file(partial / name)
    sync_folder(partial)
    partial.rename(final)
    sync_folder(final.parent)


def hash_file(path: Path) -> tuple[int, str]:
    """Size in bytes and hash ("xxh3_128:" and 32 hex digits) of a regular file, symbolic links refused.

    While it hashes, the disk reads the next AHEAD_BYTES into the page cache, where a restore finds them.
    """
    digest = xxhash.xxh3_128()
    size = 0
    block = memoryview(bytearray(READ_BYTES))
    with os.fdopen(_open_regular(path), "rb", buffering=0) as file:
        asked, end = 0, os.fstat(file.fileno()).st_size
        # The kernel reads ahead by itself, but less far, and into larger pages. From a virtual disk, into memory that
        # the host had taken back, 400 MB took 1.4 to 2.1 s with that (POSIX_FADV_SEQUENTIAL), and 0.4 to 0.5 s so.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while True:
            while asked < min(size + AHEAD_BYTES, end):
                read_ahead(file.fileno(), asked)
                asked += PIECE_BYTES
            length = file.readinto(block)
            if not length:
                break
            digest.update(block[:length])
            size += length
    return size, f"xxh3_128:{digest.hexdigest()}"


def read_ahead(descriptor: int, offset: int) -> None:
    """Has the disk read the PIECE_BYTES at `offset` into the page cache, unless they are there; waits for nothing."""
    os.posix_fadvise(descriptor, offset, PIECE_BYTES, os.POSIX_FADV_WILLNEED)


def read_file(path: Path, limit: int) -> bytes:
    """At most the first `limit` bytes of a regular file, symbolic links refused."""
    with os.fdopen(_open_regular(path), "rb") as file:
        return file.read(limit)


def open_regular(path: Path) -> BinaryIO:
    """A regular file for reading, also behind a symbolic link. Raises OSError (ENXIO for any other kind of file)."""
    return os.fdopen(_open_regular(path, 0), "rb")


def _open_regular(path: Path, more: int = os.O_NOFOLLOW) -> int:
    """A descriptor for reading. It is looked at before it is opened: whoever put a named pipe or a device there would
    have it opened by us, which releases who waits at the other end, or starts what a device does (watchdog(8))."""
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC | more)
    try:
        mode = os.fstat(seen).st_mode
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.ENXIO, "Not a regular file", str(path))
        try:
            # O_NONBLOCK: a lease that its owner has on it does not hold the reader (fcntl(2))
            return os.open(f"/proc/self/fd/{seen}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(seen)
