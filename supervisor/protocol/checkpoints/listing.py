"""The checkpoints of a directory, and those in its quarantine, as a list shows them."""

from dataclasses import dataclass, replace
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import directory, manifest
from supervisor.protocol.checkpoints.manifest import Manifest, ManifestError
from supervisor.protocol.checkpoints.quarantine import list_quarantined
from supervisor.protocol.checkpoints.replayed import read_replayed
from supervisor.protocol.damage import RejectedCheckpoint

MAX_LISTED = 3000  # of each kind; beyond that a list is no use, and would be larger than an answer may be
MAX_REASON = 300  # characters in a list
MAX_SIZE = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class ListedCheckpoint:
    """One checkpoint as a list shows it.

    `valid`: whether it was verified as whole or as damaged; None if it was not verified. `reason`: why it is not
    valid. `created_wall_at`: Unix time. `replayed`: steps before or behind it were trained twice, with equal bits.
    `fetched`: it came from a mirror, so its attempt may be another host's.
    """

    name: str
    step: int
    attempt: int
    created_wall_at: float | None
    size_bytes: int | None
    valid: bool | None
    reason: str | None
    quarantined: bool
    replayed: bool = False
    fetched: bool = False


def list_checkpoints(folder: Path, verify: bool) -> tuple[ListedCheckpoint, ...]:
    """Committed checkpoints, newest first, then quarantined ones; at most MAX_LISTED of each. Raises OSError.

    `verify`: whether every byte is read, and compared with the manifest.
    """
    names, replayed = directory.committed_checkpoints(folder)[:MAX_LISTED], frozenset(read_replayed(folder))
    described = (_describe_committed(folder / str(name), name, verify) for name in names)
    committed = (
        replace(
            checkpoint,
            replayed=checkpoint.name in replayed,
            fetched=directory.is_fetched(folder / checkpoint.name),
        )
        for checkpoint in described
        if checkpoint is not None
    )
    quarantine = folder / layout.QUARANTINE
    aside = list_quarantined(folder)[:MAX_LISTED]
    quarantined = (_describe_quarantined(quarantine, checkpoint) for checkpoint in aside)
    return (*committed, *filter(None, quarantined))


def _describe_committed(folder: Path, name: layout.CheckpointName, verify: bool) -> ListedCheckpoint | None:
    try:
        content = manifest.verify_checkpoint(folder) if verify else manifest.read_manifest(folder)
    except ManifestError as error:
        if name not in directory.committed_checkpoints(folder.parent):
            return None  # retention has deleted it meanwhile
        return _listed(folder.name, name, _readable_manifest(folder), False, str(error))
    except OSError as error:
        return _listed(folder.name, name, None, None, f"cannot be read: {error.strerror}")
    return _listed(folder.name, name, content, True if verify else None, None)


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
    content: Manifest | None,
    valid: bool | None,
    reason: str | None,
    quarantined: bool = False,
) -> ListedCheckpoint:
    return ListedCheckpoint(
        name=text,
        step=name.step,
        attempt=name.attempt,
        created_wall_at=content.created_wall_at if content else None,
        size_bytes=min(content.size_bytes, MAX_SIZE) if content else None,
        valid=valid,
        reason=reason[:MAX_REASON] if reason else reason,
        quarantined=quarantined,
    )
