"""A checkpoint directory from outside: what it holds by name, where it lies, and whether it can be used.

Also begins anew in it: what it holds is moved into a numbered folder below `abandoned`, which nothing reads or deletes.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import layout, mount_points, mounts
from supervisor.protocol.checkpoints.account import find_passed_over
from supervisor.protocol.checkpoints.quarantine import give_to_owner_of, open_folder, read_quarantined
from supervisor.protocol.damage import RejectedCheckpoint
from supervisor.protocol.disk_space import full_disk_reason
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.printable import printable

WRITE_TEST_BYTES = 4096  # a block, as a full disk may still have room for a name
MAX_FILES = 10_000  # of one checkpoint: far more than any has
MAX_DEPTH = 4  # of folders in it
BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's is (stat(2))
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
MAX_ABANDONED = 1000  # tries for a free number
MAX_HOLDER_BYTES = 200  # of what the lock's file says of its holder


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """What is known of a directory without reading any checkpoint.

    `highest_step`: of the committed checkpoints; None if there are none. `mount`: the file system, in words, None if
    the kernel does not tell; `device`: its number; `remarks`: what checkpoints can't rely on there. `passed_over`: the
    checkpoint that was expected to be the newest, or one as new, if it is in quarantine. `highest_attempt`: that ever
    wrote there.
    """

    highest_step: int | None = None
    mount: str | None = None
    remarks: tuple[str, ...] = ()
    passed_over: RejectedCheckpoint | None = None
    highest_attempt: int = 0
    device: int | None = None


UNSEEN = DirectoryView()


def committed_checkpoints(directory: Path) -> list[CheckpointName]:
    """The names of all checkpoint directories, newest first; a directory that does not exist has none.

    Raises OSError if it exists and can't be read.
    """
    try:
        with os.scandir(directory) as entries:  # looks into none of them: one may be damaged
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    return sorted(filter(None, map(layout.parse_name, names)), reverse=True)


def written_bytes(directory: Path, name: CheckpointName) -> int:
    """How many bytes a checkpoint has on the disk, by what its file system has allocated: holes in a file, other names
    of files that lie elsewhere, and links count as nothing.

    Where nodes have folders of their own, this one has a part of it. Of a folder in which somebody made more than
    MAX_FILES, the rest is not looked at. Raises OSError.
    """
    total, looked_at = 0, 0
    try:
        first = os.open(directory / str(name), _FOLDER)
    except FileNotFoundError:
        first = os.open(directory / name.part, _FOLDER)
    folders = [(first, 0)]
    try:
        while folders:
            folder, depth = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        looked_at += 1
                        if looked_at > MAX_FILES:
                            return total
                        status = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                            total += min(status.st_size, status.st_blocks * BLOCK_BYTES)
                        elif stat.S_ISDIR(status.st_mode) and depth < MAX_DEPTH:
                            folders.append((os.open(entry.name, _FOLDER, dir_fd=folder), depth + 1))
            finally:
                os.close(folder)
    finally:
        for folder, _ in folders:
            os.close(folder)
    return total


def view_directory(directory: Path, expected: str | None = None) -> DirectoryView:
    """Looks at the directory. `expected`: the name of the checkpoint that should be the newest, if that is known.

    Raises OSError if it exists and can't be read.
    """
    names = committed_checkpoints(directory)
    mount, missing = mounts.mount_of(directory), mount_points.missing_volume(directory)
    hidden = () if missing is None else (f"{missing}: once it is, what is saved here now is out of sight",)
    return DirectoryView(
        names[0].step if names else None,
        None if mount is None else str(mount),
        (*hidden, *(() if mount is None else mounts.remarks_on(mount))),
        _find_quarantined(directory, expected),
        highest_attempt(directory),
        mounts.device_of(directory),
    )


def _find_quarantined(directory: Path, expected: str | None) -> RejectedCheckpoint | None:
    """The expected checkpoint, or one as new, in quarantine; with the reason."""
    wanted = None if expected is None else layout.parse_name(expected)
    if wanted is None:
        return None
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),
        os.scandir(directory / layout.QUARANTINE) as iterator,
    ):
        match = find_passed_over(wanted, (RejectedCheckpoint(entry.name, "") for entry in iterator))
        return None if match is None else read_quarantined(directory, match.name)
    return None


def check_mounted(directory: Path, expected: str | None, tables: mount_points.MountTables = mount_points.HOST) -> None:
    """Raises OSError (ENODEV) if a table of the host says that a volume belongs at or above the directory, and nothing
    is mounted there: whatever lies below its mount point is not what belongs there, and would be out of sight later.

    `expected`: the name of the checkpoint that should be the newest. Where that lies, the job has trained all along.
    """
    missing = mount_points.missing_volume(directory, tables)
    if missing is None or (expected is not None and layout.parse_name(expected) in committed_checkpoints(directory)):
        return
    raise OSError(errno.ENODEV, str(missing), str(directory))


def check_usable(directory: Path, writes: bool) -> None:
    """Raises OSError if the newest checkpoint can't be opened or, with `writes`, if no file can be written.

    Reads one block of each of its files. A directory that does not exist is made by the worker, so nothing is tested.
    """
    for name in committed_checkpoints(directory)[:1]:
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile, or damaged, which the selection finds
            for file in (directory / str(name)).iterdir():
                _read_block(file)
    if writes and directory.is_dir():
        try:
            _write_block(directory)
        except OSError as error:
            raise OSError(error.errno, full_disk_reason(error, directory), str(directory)) from error


def _read_block(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        os.read(descriptor, WRITE_TEST_BYTES)
    finally:
        os.close(descriptor)


def _write_block(directory: Path) -> None:
    path = directory / layout.WRITE_TEST
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, bytes(WRITE_TEST_BYTES))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        path.unlink()


def check_not_held(directory: Path) -> None:
    """Raises OSError (EBUSY) if a live worker holds the directory: one of another daemon or host, or without a daemon.

    What it saves is not to be moved away from under it.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(directory / layout.LOCK, flags)
    except OSError:  # no worker was ever here, or it can't be told: what is done next says what is wrong
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = printable(os.pread(descriptor, MAX_HOLDER_BYTES, 0).decode(errors="replace").strip())
        raise OSError(errno.EBUSY, f"a live worker holds it ({holder or 'unknown'})", str(directory)) from error
    except OSError:  # a file system without locks
        return
    finally:
        os.close(descriptor)


def begin_anew(directory: Path, require: Callable[[], None] = lambda: None) -> tuple[str, ...]:
    """Moves all checkpoints and what belongs to them aside, and returns the names of what it moved.

    Afterwards the directory is as before the job's first start; what another program left there stays. Raises OSError;
    then some may be moved and others not, and another call moves the rest. `require`: called when nothing is in
    its way, and before each move; what it raises passes through.
    """
    check_not_held(directory)
    belongings = (layout.QUARANTINE, layout.CONDITIONS, layout.SKIPPED, layout.SET_ONCE, layout.POINTER)
    try:
        with os.scandir(directory) as entries:
            present = [entry.name for entry in entries]
    except FileNotFoundError:
        present = []
    require()
    moved = sorted(name for name in present if name in belongings or layout.parse_name(name) is not None)
    move_to_abandoned(directory, moved, require)
    return tuple(moved)


def move_to_abandoned(directory: Path, names: Sequence[str], require: Callable[[], None]) -> None:
    """Moves what an operator gives up into a new numbered folder, which nothing reads or deletes. Raises OSError.

    `require`: called before each move; what it raises passes through. The newest checkpoint should be the last name:
    while it is there, nothing that counts is lost.
    """
    if not names:
        return
    with open_folder(directory) as home:
        with contextlib.suppress(FileExistsError):
            os.mkdir(layout.ABANDONED, dir_fd=home)
        with open_folder(layout.ABANDONED, home) as abandoned:
            give_to_owner_of(home, abandoned)
            with open_folder(_make_numbered(abandoned), abandoned) as target:
                give_to_owner_of(home, target)
                for name in names:
                    require()
                    os.rename(name, name, src_dir_fd=home, dst_dir_fd=target)
                os.fsync(target)
            os.fsync(abandoned)
        os.fsync(home)


def _make_numbered(folder: int) -> str:
    for number in range(1, MAX_ABANDONED):
        with contextlib.suppress(FileExistsError):
            os.mkdir(str(number), dir_fd=folder)
            return str(number)
    raise FileExistsError(f"{layout.ABANDONED} holds {MAX_ABANDONED - 1} folders")


def is_fetched(checkpoint: Path) -> bool:
    """Whether a checkpoint came from a mirror; its attempt is another host's then, perhaps of the same number."""
    return (checkpoint / layout.FETCHED).exists()


def was_left_in_memory(checkpoint: Path) -> bool:
    """Whether a checkpoint is the state that a dead worker left in memory, in which nobody has looked for NaN."""
    return (checkpoint / layout.FROM_MEMORY).exists()


def highest_attempt(directory: Path, counts: Callable[[Path], bool] = lambda path: True) -> int:
    """The highest attempt in the name of a checkpoint that `counts`, committed, interrupted or set aside; 0 if none is.

    Numbers above MAX_TRACED_ATTEMPT do not count.

    Raises OSError if the directory exists and can't be read.
    """
    highest = 0
    for folder in (directory, directory / layout.QUARANTINE):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for text in os.listdir(folder):  # noqa: PTH208 - names, not paths
                name = layout.checkpoint_name_in(text)
                if name is not None and highest < name.attempt <= layout.MAX_TRACED_ATTEMPT and counts(folder / text):
                    highest = name.attempt
    return highest
