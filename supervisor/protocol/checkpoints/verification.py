"""Verifies every checkpoint in a folder, ours and those of other programs, to the last byte. Changes nothing."""

from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import foreign, manifest, selection
from supervisor.protocol.checkpoints.manifest import ManifestError
from supervisor.protocol.checkpoints.quarantine import list_quarantined
from supervisor.protocol.damage import BundleError, Damage
from supervisor.protocol.formats import NewerFormat
from supervisor.protocol.tensorbundle import verify

MAX_LOOKS = 5  # each finds what was saved during the one before; a run that outpaces them is not waited for


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """One checkpoint and whether it is valid. What is not known is None; `created_wall_at` is Unix time.

    `kind`: `stepkeeper` or `tensorflow`. `reason`: why it is not valid, or does not count; `damage`: its kind, for one
    of TensorFlow, and UNSUPPORTED for one of ours that a later version wrote. `counts`: False for one of a mirror if
    another host has gone on with the run from an earlier one.
    """

    name: str
    kind: str
    step: int | None
    attempt: int | None
    created_wall_at: float | None
    size_bytes: int | None
    valid: bool
    reason: str | None = None
    damage: Damage | None = None
    quarantined: bool = False
    counts: bool = True


def verify_all(place: Path) -> list[VerifiedCheckpoint]:
    """Those in a folder, newest first and ours before others, then those set aside; or the one that `place` names.

    Raises OSError if something can't be read for a reason that says nothing about the checkpoints.
    """
    named = selection.own_checkpoint_at(place)
    if named is not None and named.is_dir():
        return [_ours(named)]
    ours = _all_ours(place) if place.is_dir() else []
    aside = [_set_aside(checkpoint.name, checkpoint.reason) for checkpoint in list_quarantined(place)]
    return [*ours, *map(_other, foreign.prefixes_at(place)), *aside]


def _all_ours(place: Path) -> list[VerifiedCheckpoint]:
    """Those in a folder, without those that a live run's retention deletes meanwhile, and with what it has added."""
    checkpoints: dict[layout.CheckpointName, VerifiedCheckpoint] = {}
    seen: set[layout.CheckpointName] = set()
    for _ in range(MAX_LOOKS):
        new = [name for name in selection.committed_checkpoints(place) if name not in seen]
        seen.update(new)
        for name in new:
            verified = _ours(place / str(name))
            if verified.valid or (place / str(name)).exists():
                checkpoints[name] = verified
        if checkpoints.keys() >= set(new):
            break
    return [checkpoints[name] for name in sorted(checkpoints, reverse=True)]


def _ours(folder: Path) -> VerifiedCheckpoint:
    name = layout.parse_name(folder.name)
    step, attempt = (name.step, name.attempt) if name is not None else (None, None)
    try:
        proven = manifest.verify_checkpoint(folder)
    except NewerFormat as error:
        return VerifiedCheckpoint(
            folder.name, "stepkeeper", step, attempt, None, None, False, str(error), Damage.UNSUPPORTED
        )
    except ManifestError as error:
        return VerifiedCheckpoint(folder.name, "stepkeeper", step, attempt, None, None, False, str(error))
    return VerifiedCheckpoint(folder.name, "stepkeeper", step, attempt, proven.created_wall_at, proven.size_bytes, True)


def _other(prefix: Path) -> VerifiedCheckpoint:
    try:
        bundle = verify.verify_bundle(prefix)
    except BundleError as error:
        reason = foreign.explain_rejection(prefix, error)
        return VerifiedCheckpoint(prefix.name, "tensorflow", None, None, None, None, False, reason, error.damage)
    written_at = prefix.with_name(f"{prefix.name}{verify.INDEX}").stat().st_mtime
    return VerifiedCheckpoint(
        prefix.name, "tensorflow", foreign.step_of_bundle(bundle)[0], None, written_at, bundle.size_bytes, True
    )


def _set_aside(text: str, reason: str) -> VerifiedCheckpoint:
    name = layout.checkpoint_name_in(text)
    step, attempt = (name.step, name.attempt) if name is not None else (None, None)
    return VerifiedCheckpoint(text, "stepkeeper", step, attempt, None, None, False, reason, quarantined=True)
