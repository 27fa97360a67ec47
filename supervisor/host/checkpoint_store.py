"""Answers questions about checkpoint directories without blocking the event loop.

Every look at the disk happens in a thread (`BlockingCalls`). A dead file system may hold a thread forever; that delays
only later questions about the same directory, never the loop, another job, or the end of the daemon.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from supervisor.host.blocking_calls import BlockingCalls
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.checkpoints.manifest import Manifest, ManifestError
from supervisor.protocol.checkpoints.quarantine import list_quarantined, move_to_quarantine
from supervisor.protocol.checkpoints.selection import Selection
from supervisor.protocol.damage import RejectedCheckpoint

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """One checkpoint as a list shows it.

    `valid`: whether it was verified as whole or as damaged; None if it was not verified. `reason`: why it is not
    valid. `created_wall_at`: Unix time.
    """

    name: str
    step: int
    attempt: int
    created_wall_at: float | None
    size_bytes: int | None
    valid: bool | None
    reason: str | None
    quarantined: bool


class CheckpointStore:
    """The questions the daemon asks, answered one at a time for each directory."""

    def __init__(self) -> None:
        self._calls = BlockingCalls()

    async def select(self, directory: Path, initial: Path | None = None, avoid: Collection[str] = ()) -> Selection:
        """Returns the newest whole checkpoint and quarantines damaged ones; raises what `select_checkpoint` raises."""
        return await self._run(directory, lambda: selection.select_checkpoint(directory, initial, avoid))

    async def roll_back(self, directory: Path, before: int) -> tuple[RejectedCheckpoint, ...]:
        """Quarantines the checkpoints of step `before` and later, if an older one is whole."""
        return await self._run(directory, lambda: selection.roll_back(directory, before))

    async def quarantine(self, directory: Path, reasons: Collection[tuple[str, str]]) -> tuple[RejectedCheckpoint, ...]:
        """Quarantines those of the named checkpoints that exist, each with its reason. Raises OSError."""
        return await self._run(directory, lambda: _quarantine(directory, dict(reasons)))

    async def list_checkpoints(self, directory: Path, verify: bool) -> list[ListedCheckpoint]:
        """All checkpoints, newest first, then those in quarantine. `verify` reads every byte of them.

        Raises OSError if the directory can't be read.
        """
        return await self._run(directory, lambda: _listing(directory, verify))

    async def highest_attempt(self, directory: Path) -> int:
        """The highest attempt in the names of all checkpoints, also unfinished and bad ones; 0 if there are none.

        Raises OSError if the directory can't be read.
        """
        return await self._run(directory, lambda: selection.highest_attempt(directory))

    async def device_number(self, directory: Path) -> int:
        """The number of the device that the directory is on. Raises OSError."""
        return await self._run(directory, lambda: directory.stat().st_dev)

    async def _run(self, directory: Path, work: Callable[[], Result]) -> Result:
        return await self._calls.run_for_folder(directory, work)


def _quarantine(directory: Path, reasons: Mapping[str, str]) -> tuple[RejectedCheckpoint, ...]:
    found = [name for name in selection.committed_checkpoints(directory) if str(name) in reasons]
    for name in found:
        move_to_quarantine(directory, name, reasons[str(name)])
    return tuple(RejectedCheckpoint(str(name), reasons[str(name)]) for name in found)


def _listing(directory: Path, verify: bool) -> list[ListedCheckpoint]:
    committed = (
        _describe_committed(directory / str(name), name, verify) for name in selection.committed_checkpoints(directory)
    )
    quarantine = directory / layout.QUARANTINE
    quarantined = (_describe_quarantined(quarantine, each) for each in list_quarantined(directory))
    return [*filter(None, committed), *filter(None, quarantined)]


def _describe_committed(folder: Path, name: layout.CheckpointName, verify: bool) -> ListedCheckpoint | None:
    try:
        found = manifest.verify_checkpoint(folder) if verify else manifest.read_manifest(folder)
    except ManifestError as error:
        if name not in selection.committed_checkpoints(folder.parent):
            return None  # retention has deleted it meanwhile
        return _listed(folder.name, name, _readable_manifest(folder), False, str(error))
    except OSError as error:
        return _listed(folder.name, name, None, None, f"cannot be read: {error.strerror}")
    return _listed(folder.name, name, found, True if verify else None, None)


def _describe_quarantined(quarantine: Path, refused: RejectedCheckpoint) -> ListedCheckpoint | None:
    name = layout.checkpoint_name_in(refused.name)
    if name is None:
        return None
    return _listed(refused.name, name, _readable_manifest(quarantine / refused.name), False, refused.reason, True)


def _readable_manifest(folder: Path) -> Manifest | None:
    try:
        return manifest.read_manifest(folder)
    except (ManifestError, OSError):
        return None


def _listed(
    text: str,
    name: layout.CheckpointName,
    found: Manifest | None,
    valid: bool | None,
    reason: str | None,
    quarantined: bool = False,
) -> ListedCheckpoint:
    return ListedCheckpoint(
        name=text,
        step=name.step,
        attempt=name.attempt,
        created_wall_at=found.created_wall_at if found else None,
        size_bytes=found.size_bytes if found else None,
        valid=valid,
        reason=reason,
        quarantined=quarantined,
    )
