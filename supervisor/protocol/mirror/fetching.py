"""How a checkpoint comes from a store into a folder, and what of the folder still counts.

Into `….partial`, hashed while it is written, compared with the manifest, synced and renamed, as the worker's own
checkpoints are. What does not agree is refused, and the next older one is tried.
"""

import json
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import FileRecord, ManifestError
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.keys import RemoteCheckpoint
from supervisor.protocol.mirror.line import checkpoints_on_line, left_behind
from supervisor.protocol.mirror.remote_run import RemoteRun, check_file, committed, read_file, read_manifest
from supervisor.protocol.mirror.store import Store, StoreError

MAX_HELD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What was fetched (None: there is nothing newer). `epoch`: the highest there is; 0: nobody ever began one.

    `attempt`: the highest in a remote checkpoint's name. `newest`: the newest remote one that counts. `left_behind`:
    local checkpoints that another host's epoch left behind. `bad`: remote ones that were refused, with the reason.
    """

    fetched: CheckpointName | None
    epoch: int
    attempt: int
    newest: CheckpointName | None
    left_behind: tuple[CheckpointName, ...]
    bad: tuple[tuple[RemoteCheckpoint, str], ...]


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
    epochs, found = run.epochs(), committed(run.files())
    line = checkpoints_on_line(epochs, found)
    if not (line or only_look) and epochs and (parent := epochs[max(epochs)].parent) is not None:
        raise StoreError(
            f"the store lists no checkpoint of this run, although its last host went on from {parent}; wait until it "
            f"lists all again, or begin anew on purpose (start --from-scratch)"
        )
    local = local_checkpoints(folder)
    behind = left_behind(local, held_epoch(folder), epochs)
    if newer_than in behind:
        newer_than = max((each for each in local if each not in behind), default=None)
    wanted = [each for each in line if (below is None or each.name.step < below) and str(each.name) not in unwanted]
    bad: list[tuple[RemoteCheckpoint, str]] = []
    fetched = None
    for each in () if only_look else wanted:
        if newer_than is not None and each.name <= newer_than:
            break
        if each.name in local:
            continue
        try:
            _download(run.store, each, folder)
        except ManifestError as error:
            bad.append((each, str(error)))
            continue
        fetched = each.name
        break
    newest = wanted[0].name if wanted else None
    attempt = max((each.name.attempt for each in found), default=0)
    return FetchResult(fetched, max(epochs, default=0), attempt, newest, behind, tuple(bad))


def local_checkpoints(folder: Path) -> list[CheckpointName]:
    """The names of the checkpoints in a folder; none if there is no folder."""
    try:
        return [name for each in folder.iterdir() if (name := parse_name(each.name)) is not None]
    except FileNotFoundError:
        return []


def held_epoch(folder: Path) -> int | None:
    """The epoch under which this folder's checkpoints were written; None if it never had one."""
    try:
        body = json.loads(durable.read_file(folder / layout.EPOCH_HELD, MAX_HELD_BYTES).decode())
        number = body["epoch"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return None
    return number if isinstance(number, int) and number > 0 else None


def hold_epoch(folder: Path, number: int) -> None:
    """Notes under which epoch the folder's checkpoints are written from now on. Raises OSError."""
    durable.make_folder(folder)
    durable.write_file(folder / layout.EPOCH_HELD, json.dumps({"epoch": number}).encode())


def _download(store: Store, remote: RemoteCheckpoint, target: Path) -> None:
    """Raises ManifestError if it is not whole."""
    manifest, content = read_manifest(store, str(remote))
    if manifest.name != remote.name:
        raise ManifestError(f"{layout.MANIFEST} says {manifest.name}, its place {remote.name}")
    durable.make_folder(target)
    partial = target / remote.name.partial
    if partial.is_dir():
        shutil.rmtree(partial)  # an earlier try was cut off
    try:
        with NewFolder(partial) as folder:
            for file in manifest.files:
                _download_file(store, remote, file, folder)
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
