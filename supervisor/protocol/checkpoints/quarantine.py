"""Checkpoints that were set aside because they are damaged or given up: moved, listed, never deleted."""

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.layout import CheckpointName

REASON_FILE = "WHY.txt"  # the reason in words; below it, unless the checkpoint is damaged, a line with KIND
KIND = "because: "
UNRECORDED = "the reason could not be written there, as on a full disk; the daemon's log has it"
MAX_REASON_BYTES = 1000


def move_to_quarantine(
    directory: Path, name: CheckpointName, reason: str, because: OlderBecause = OlderBecause.DAMAGED
) -> Path:
    """Moves a bad checkpoint to quarantine, where nothing selects or deletes it, and writes the reason into it.

    Raises OSError; the checkpoint then stays where it was. A root daemon does this in a folder that belongs to
    somebody else, so it follows no symbolic link in it and gives what it creates there to the folder's owner.
    """
    with open_folder(directory) as home:
        with contextlib.suppress(FileExistsError):
            os.mkdir(layout.QUARANTINE, dir_fd=home)
        with open_folder(layout.QUARANTINE, home) as aside:
            give_to_owner_of(home, aside)
            moved = _move(str(name), home, aside)
            os.fsync(aside)
            os.fsync(home)
            with (
                contextlib.suppress(OSError),
                open_folder(moved, aside) as bad,
            ):  # the disk may be full; the reason is also in the log
                _leave_reason(bad, reason, because)
    return directory / layout.QUARANTINE / moved


@contextlib.contextmanager
def open_folder(path: Path | str, inside: int | None = None) -> Iterator[int]:
    """A descriptor of a folder; with `inside`, of one that really lies there."""
    link = 0 if inside is None else os.O_NOFOLLOW
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | link, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _move(name: str, home: int, aside: int) -> str:
    """Moves a folder to the first name that is free; says which."""
    for target in itertools.chain([name], (f"{name}.{count}" for count in itertools.count(2))):
        try:
            os.rename(name, target, src_dir_fd=home, dst_dir_fd=aside)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return target
    raise AssertionError("there is always a higher number")


def _leave_reason(folder: int, reason: str, because: OlderBecause) -> None:
    kind = "" if because is OlderBecause.DAMAGED else f"{KIND}{because}\n"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(REASON_FILE, dir_fd=folder)
    file = os.open(REASON_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        os.write(file, f"{reason}\n{kind}".encode("utf-8", "replace"))
        give_to_owner_of(folder, file)
        os.fsync(file)
    finally:
        os.close(file)


def give_to_owner_of(folder: int, descriptor: int) -> None:
    """Gives what root has created in a folder to the folder's owner."""
    if os.geteuid() == 0:
        owner = os.fstat(folder)
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def list_quarantined(directory: Path) -> list[RejectedCheckpoint]:
    """The checkpoints in quarantine, newest first, with the reason that each was put there."""
    try:
        names = sorted(os.listdir(directory / layout.QUARANTINE), reverse=True)  # noqa: PTH208 - names, not paths
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [read_quarantined(directory, name) for name in names]


def read_quarantined(directory: Path, name: str) -> RejectedCheckpoint:
    """A checkpoint in quarantine, by the name of its folder there, with the reason that it was put there."""
    try:
        file = directory / layout.QUARANTINE / name / REASON_FILE
        text = durable.read_file(file, MAX_REASON_BYTES).decode(errors="replace").strip()
    except OSError:
        text = ""
    words, _, last = text.rpartition("\n")
    kind = last.removeprefix(KIND)
    if last.startswith(KIND) and kind in tuple(OlderBecause):
        return RejectedCheckpoint(name, words.strip(), OlderBecause(kind))
    return RejectedCheckpoint(name, text or UNRECORDED, is_recorded=bool(text))
