"""Finds the newest checkpoint that is proven whole, and sets aside the ones that are not.

Used by the daemon before every attempt, and by a worker that runs without a daemon. TensorFlow's own `checkpoint`
pointer is never read: a damaged pointer must not hide good checkpoints.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import durable, layout, manifest
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.manifest import Manifest, ManifestError

REASON_FILE = "WHY.txt"


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that is not whole: its name, and the reason in words."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The checkpoint to restore (None: begin at step 0, there never was one), and those refused on the way to it."""

    path: Path | None
    manifest: Manifest | None
    refused: tuple[Refused, ...] = ()


class NoValidCheckpoint(Exception):
    """Checkpoints exist, or existed, and none is whole: beginning again at step 0 is a decision for a person."""

    def __init__(self, directory: Path, refused: tuple[Refused, ...]) -> None:
        self.refused = refused
        listed = "; ".join(f"{each.name}: {each.reason}" for each in refused)
        super().__init__(
            f"cannot restore from {directory}: no checkpoint in it is whole ({listed}); restore one from a copy, "
            f"or move {layout.QUARANTINE}/ away to begin again at step 0"
        )


def committed(directory: Path) -> list[CheckpointName]:
    """The names of all checkpoint directories, newest first; a directory that does not exist has none.

    Raises OSError if it exists and can't be read.
    """
    try:
        entries = [entry.name for entry in directory.iterdir() if entry.is_dir() and not entry.is_symlink()]
    except FileNotFoundError:
        return []
    return sorted(filter(None, map(layout.parse_name, entries)), reverse=True)


def select(directory: Path) -> Selection:
    """Verifies newest first and returns the first whole checkpoint; the bad ones before it go to quarantine.

    Reads every byte of what it verifies. Raises NoValidCheckpoint if there is nothing whole but something was, now
    or earlier; OSError if the directory can't be read or a bad checkpoint can't be set aside.
    """
    refused: list[Refused] = []
    for name in committed(directory):
        try:
            proven = manifest.verify(directory / str(name))
        except ManifestError as error:
            if not (directory / str(name)).is_dir():
                continue  # retention of a worker that is still leaving took it
            quarantine(directory, name, str(error))
            refused.append(Refused(str(name), str(error)))
        else:
            return Selection(directory / str(name), proven, tuple(refused))
    set_aside = [*refused, *(each for each in quarantined(directory) if each.name not in {r.name for r in refused})]
    if set_aside:
        raise NoValidCheckpoint(directory, tuple(set_aside))
    return Selection(None, None)


def quarantine(directory: Path, name: CheckpointName, reason: str) -> Path:
    """Moves a bad checkpoint where nothing will choose it and nothing deletes it, and leaves the reason beside it.

    Raises OSError; the checkpoint then stays where it was.
    """
    folder = directory / layout.QUARANTINE
    folder.mkdir(exist_ok=True)
    for target in _free_names(folder, str(name)):
        try:
            (directory / str(name)).rename(target)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    durable.sync_folder(folder)
    durable.sync_folder(directory)
    durable.write_file(target / REASON_FILE, f"{reason}\n".encode())
    return target


def _free_names(folder: Path, name: str) -> Iterator[Path]:
    yield folder / name
    count = 2
    while True:
        yield folder / f"{name}.{count}"
        count += 1


def quarantined(directory: Path) -> list[Refused]:
    """What lies in quarantine, newest first, with the reason it was put there."""
    try:
        names = sorted(os.listdir(directory / layout.QUARANTINE), reverse=True)  # noqa: PTH208 - names, not paths
    except FileNotFoundError:
        return []
    return [Refused(name, _reason(directory / layout.QUARANTINE / name)) for name in names]


def _reason(folder: Path) -> str:
    try:
        return (folder / REASON_FILE).read_text(errors="replace").strip()[:1000]
    except OSError:
        return "set aside, reason not recorded"


def sweep_partials(directory: Path) -> list[str]:
    """Deletes what interrupted saves left behind. Only the worker that holds the directory's lock may call it."""
    leftovers = [entry for entry in directory.iterdir() if layout.is_partial(entry.name)]
    for leftover in leftovers:
        shutil.rmtree(leftover)
    return [leftover.name for leftover in leftovers]


def delete(directory: Path, name: CheckpointName) -> None:
    """Deletes a committed checkpoint: it stops existing first (one rename), its bytes go after."""
    doomed = directory / name.partial
    (directory / str(name)).rename(doomed)
    shutil.rmtree(doomed)
