"""How a checkpoint comes from a store into a folder, and what of the folder still counts.

Into `….partial`, hashed while it is written, compared with the manifest, synced and renamed, as the worker's own
checkpoints are. What does not agree is refused, and the next older one is tried.

What another host has left behind has to leave the folder before anything is fetched: which checkpoint is then the
newest whole one here decides what is newer.
"""

import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import FileRecord, ManifestError
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.folder_epochs import (
    encode_fetched,
    epochs_of_checkpoints,
    held_epoch,
    local_checkpoints,
    record_seen,
)
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint
from supervisor.protocol.mirror.line import checkpoints_on_line, left_behind
from supervisor.protocol.mirror.remote_run import RemoteRun, check_file, committed, read_file, read_manifest
from supervisor.protocol.mirror.store import Store, StoreError


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What was fetched (None: there is nothing newer). `epoch`: the highest there is; 0: nobody ever began one.

    `attempt`: the highest in a remote checkpoint's name. `newest`: the newest remote one that counts and may be used;
    `seen`: the newest that counts, whether it may be used or not. `left_behind`: local checkpoints that another host's
    epoch left behind; if there are any, nothing was fetched, and the caller sets them aside and asks again. `bad`:
    remote ones that were refused, with the reason. `is_held`: the newest epoch is this host's, or there is none.
    """

    fetched: CheckpointName | None
    epoch: int
    attempt: int
    newest: CheckpointName | None
    seen: CheckpointName | None
    left_behind: tuple[CheckpointName, ...]
    bad: tuple[tuple[RemoteCheckpoint, str], ...]
    is_held: bool


def fetch(
    run: RemoteRun,
    folder: Path,
    newer_than: CheckpointName | None,
    below: int | None = None,
    unwanted: Collection[str] = (),
    only_look: bool = False,
) -> FetchResult:
    """Fetches the newest checkpoint that counts and is newer than one (None: any), below a step (None: any).

    Those that are in the folder already are not fetched: what chose an older one had its reasons.

    Raises StoreError, and OSError if the folder can't be written.
    """
    epochs, checkpoints = run.epochs(), committed(run.files())
    line = checkpoints_on_line(epochs, checkpoints)
    if not (line or only_look) and epochs:
        _refuse_empty_list(run, epochs[max(epochs)])
    latest, attempt = max(epochs, default=0), max((checkpoint.name.attempt for checkpoint in checkpoints), default=0)
    here = local_checkpoints(folder)
    behind = left_behind(epochs_of_checkpoints(folder, epochs), epochs)
    wanted = [
        checkpoint
        for checkpoint in line
        if (below is None or checkpoint.name.step < below) and str(checkpoint.name) not in unwanted
    ]
    bad: list[tuple[RemoteCheckpoint, str]] = []
    fetched = None
    if not (only_look or behind):
        if latest > 0:
            record_seen(folder, 1 + max((attempt, *(name.attempt for name in here))), latest, epochs)
        for checkpoint in wanted:
            if newer_than is not None and checkpoint.name <= newer_than:
                break
            if checkpoint.name in here:
                continue
            try:
                _download(run.store, checkpoint, folder)
            except ManifestError as error:
                bad.append((checkpoint, str(error)))
                continue
            fetched = checkpoint.name
            break
    refused = {checkpoint for checkpoint, _ in bad}
    newest = next((checkpoint.name for checkpoint in wanted if checkpoint not in refused), None)
    seen = max((checkpoint.name for checkpoint in line), default=None)
    is_held = latest <= (held_epoch(folder, epochs) or 0)
    return FetchResult(fetched, latest, attempt, newest, seen, behind, tuple(bad), is_held)


def _refuse_empty_list(run: RemoteRun, latest: Epoch) -> None:
    """Raises StoreError if a run of which no checkpoint is listed has one, or had."""
    if latest.parent is not None:
        why = f"its last host went on from {latest.parent}"
    elif run.has_committed(latest.number):
        why = f"its last host has uploaded some (epoch {latest.number})"
    else:
        return
    raise StoreError(
        f"the store lists no checkpoint of this run, although {why}; wait until it lists all again, or begin anew on "
        f"purpose (start --from-scratch)"
    )


def _download(store: Store, remote: RemoteCheckpoint, target: Path) -> None:
    """Raises ManifestError if it is not whole."""
    manifest, content = read_manifest(store, str(remote))
    if manifest.name != remote.name:
        raise ManifestError(f"{layout.MANIFEST} says {manifest.name}, its place {remote.name}")
    if any(file.name == layout.FETCHED for file in manifest.files):
        raise ManifestError(f"{layout.MANIFEST} names {layout.FETCHED}, which is not a program's")
    durable.make_folder(target)
    partial = target / remote.name.partial
    if partial.is_dir():
        shutil.rmtree(partial)  # an earlier try was cut off
    try:
        with NewFolder(partial) as folder:
            for file in manifest.files:
                _download_file(store, remote, file, folder)
            folder.add(layout.FETCHED, encode_fetched(remote.epoch))
            folder.add(layout.MANIFEST, content)
            folder.commit(target / str(remote.name))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _download_file(store: Store, remote: RemoteCheckpoint, expected: FileRecord, folder: NewFolder) -> None:
    file = folder.create(expected.name)
    for piece in read_file(store, str(remote), expected):
        file.write(piece)
    check_file(expected, *file.end())
