"""Deletes checkpoints, and sets those aside that are given up: after a divergence, or because an operator says so."""

import contextlib
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.directory import (
    check_not_held,
    committed_checkpoints,
    move_to_abandoned,
    was_left_in_memory,
)
from supervisor.protocol.checkpoints.manifest import ManifestError, read_manifest, verify_checkpoint
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from supervisor.protocol.checkpoints.retention import (
    RetainedCheckpoint,
    RetentionPolicy,
    select_expendable,
    select_for_room,
)
from supervisor.protocol.checkpoints.selection import NoValidCheckpoint
from supervisor.protocol.damage import OlderBecause, RejectedCheckpoint
from supervisor.protocol.disk_space import DISK_FULL
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.plurals import listed


class NoSuchStep(NoValidCheckpoint):
    """An operator wants to begin from a step of which there is no whole checkpoint."""

    def __init__(self, directory: Path, step: int, steps: Sequence[int]) -> None:
        super().__init__(directory, ())
        there = listed([str(number) for number in steps]) if steps else "none"
        self.args = (
            f"cannot begin from step {step} in {directory}: there is no whole checkpoint of that step; steps there: "
            f"{there}",
        )


def roll_back(
    directory: Path, before: int, diverged: int | None = None, note: Callable[[], None] = lambda: None
) -> tuple[RejectedCheckpoint, ...]:
    """Puts the checkpoints of step `before` and later into quarantine, and says which.

    Only if one of an earlier step is proven whole; else nothing, as what is there is better than nothing. `diverged`:
    the attempt in which training diverged, None: not known; a later one that has saved is proof that it went on.
    `note`: called before the first is moved. Raises OSError if the directory can't be read or changed.
    """
    names = committed_checkpoints(directory)
    given_up = [name for name in names if name.step >= before and (diverged is None or name.attempt <= diverged)]
    if not any(_is_whole(directory / str(name)) for name in names if name.step < before):
        return ()
    note()
    reason = f"given up: training diverged at about step {before}, and this is not from before that"
    for name in given_up:
        move_to_quarantine(directory, name, reason, OlderBecause.ROLLED_BACK)
    return tuple(RejectedCheckpoint(str(name), reason, OlderBecause.ROLLED_BACK) for name in given_up)


def begin_at(directory: Path, step: int, require: Callable[[], None] = lambda: None) -> tuple[str, ...]:
    """Moves the checkpoints that are newer than the whole one of a step aside, and returns their names.

    Raises NoValidCheckpoint if there is no whole one of that step, and OSError if the directory can't be read or
    changed; then some may be moved and others not, and another call moves the rest. `require`: as for `begin_anew`.
    """
    check_not_held(directory)
    names = committed_checkpoints(directory)
    chosen = next((name for name in names if name.step == step and _is_whole(directory / str(name))), None)
    if chosen is None:
        raise NoSuchStep(directory, step, sorted({name.step for name in names}, reverse=True))
    require()
    moved = tuple(str(name) for name in sorted(names) if name > chosen)
    move_to_abandoned(directory, moved, require)
    return moved


def delete_expendable(
    directory: Path,
    policy: RetentionPolicy,
    newest: CheckpointName,
    known: dict[CheckpointName, RetainedCheckpoint],
    spared: Collection[CheckpointName] = (),
) -> None:
    """Deletes what the policy does not keep, but never `newest` nor those `spared`; nor what is damaged, which is
    evidence, or can't be read now. Nothing if `newest` is not there, as then it was committed in another directory.
    Raises OSError.

    `known`: what was read before, and is remembered for the next call.
    """
    names = committed_checkpoints(directory)
    if newest not in names:
        return
    for name in names:
        if name not in known:
            try:
                content = read_manifest(directory / str(name))
            except (ManifestError, OSError):
                continue
            was_left = was_left_in_memory(directory / str(name))
            known[name] = RetainedCheckpoint(name, content.created_wall_at, content.metrics, was_left)
    for name in select_expendable([known[name] for name in names if name in known], policy):
        if name != newest and name not in spared:
            delete_checkpoint(directory, name)
            del known[name]


def delete_partials(directory: Path, kept: str | None = None) -> list[str]:
    """Deletes what interrupted saves left behind. Only the worker that holds the directory's lock may call it.

    `kept`: the name of one that is being written, of the state from which this worker begins.
    """
    replaced = (layout.POINTER, layout.CONDITIONS, layout.SKIPPED, layout.SET_ONCE, layout.BATCH)
    temporary = tuple(map(durable.temporary_prefix, replaced))
    leftovers = [
        entry
        for entry in directory.iterdir()
        if (layout.is_partial(entry.name) and entry.name != kept) or entry.name.startswith(temporary)
    ]
    for leftover in leftovers:
        with contextlib.suppress(FileNotFoundError):  # who writes `kept` may delete an old one just now
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
    return [leftover.name for leftover in leftovers]


def delete_parts(directory: Path, newest: CheckpointName) -> None:
    """Deletes this node's files of checkpoints (nodes with folders of their own) that `newest`, which exists, leaves
    without use: older ones, and those of earlier attempts, which were given up. Raises OSError."""
    for path in [*directory.glob(f"*{layout.PART}")]:
        name = layout.parse_part(path.name)
        if name is not None and name != newest and (name < newest or name.attempt < newest.attempt):
            shutil.rmtree(path)


def delete_checkpoint(directory: Path, name: CheckpointName) -> None:
    """Deletes a committed checkpoint: it stops existing first (one rename), its bytes go after.

    A full btrfs or XFS may have no room for another name, but always deletes: then the manifest goes first.
    """
    committed, doomed = directory / str(name), directory / name.partial
    try:
        committed.rename(doomed)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        (committed / layout.MANIFEST).unlink()
        doomed = committed
    shutil.rmtree(doomed)


def delete_oldest(directory: Path, spared: Collection[CheckpointName] = ()) -> CheckpointName | None:
    """Deletes the oldest checkpoint, whatever retention promises, but none that is indispensable
    (`retention.select_indispensable`). Nor those `spared`, as that from which the present attempt began: newer ones may
    be suspect.

    Says which one; None if no other is left. Damaged ones are evidence and stay. Raises OSError.
    """
    paths = {name: directory / str(name) for name in committed_checkpoints(directory)}
    whole = {name: was_left_in_memory(path) for name, path in paths.items() if _can_be_restored(path)}
    oldest = select_for_room(whole, spared)
    if oldest is not None:
        delete_checkpoint(directory, oldest)
    return oldest


def _is_whole(path: Path) -> bool:
    """Whether a checkpoint is proven whole. Raises OSError if it can't be read."""
    try:
        verify_checkpoint(path)
    except ManifestError:
        return False
    return True


def _can_be_restored(path: Path) -> bool:
    """Whether a checkpoint is proven whole now; one that can't be read is not."""
    try:
        return _is_whole(path)
    except OSError:
        return False
