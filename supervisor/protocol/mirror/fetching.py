"""How a checkpoint comes from a store into a folder, and what of the folder still counts.

Into `….partial`, hashed while it is written, compared with the manifest, synced and renamed, as the worker's own
checkpoints are. What does not agree is refused, and the next older one is tried.
"""

import contextlib
import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import FileRecord, ManifestError
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.keys import Epoch, RemoteCheckpoint, decode_epoch, encode_epoch
from supervisor.protocol.mirror.line import checkpoints_on_line, left_behind
from supervisor.protocol.mirror.remote_run import RemoteRun, check_file, committed, read_file, read_manifest
from supervisor.protocol.mirror.store import Store, StoreError

MAX_HELD_BYTES = 16384


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
    if not (line or only_look) and epochs:
        _refuse_empty_list(run, epochs[max(epochs)])
    local = local_checkpoints(folder)
    behind = left_behind(local, held_epoch(folder, epochs), epochs)
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
    refused = {each for each, _ in bad}
    newest = next((each.name for each in wanted if each not in refused), None)
    attempt = max((each.name.attempt for each in found), default=0)
    return FetchResult(fetched, max(epochs, default=0), attempt, newest, behind, tuple(bad))


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


def local_checkpoints(folder: Path) -> list[CheckpointName]:
    """The names of the checkpoints in a folder; none if there is no folder."""
    try:
        return [name for each in folder.iterdir() if (name := parse_name(each.name)) is not None]
    except FileNotFoundError:
        return []


def held_epoch(folder: Path, epochs: Mapping[int, Epoch]) -> int | None:
    """The epoch under which this folder's checkpoints were written; None if it never had one.

    One that this host was about to begin is held if the store has it: the process was killed before it knew.
    """
    held, begun = _read_record(folder)
    return begun.number if begun is not None and epochs.get(begun.number) == begun else held


def begun_epoch(folder: Path) -> Epoch | None:
    """The epoch that this host was about to begin when it was last heard of; None: it knows what became of it."""
    return _read_record(folder)[1]


def record_begin(folder: Path, epoch: Epoch) -> None:
    """Notes, before it is created, which epoch is going to be begun. Raises OSError."""
    held, _ = _read_record(folder)
    _write_record(folder, {"epoch": held, "begins": epoch.number, "object": encode_epoch(epoch).decode()})


def hold_epoch(folder: Path, number: int) -> None:
    """Notes under which epoch the folder's checkpoints are written from now on. Raises OSError."""
    _write_record(folder, {"epoch": number})


def _write_record(folder: Path, record: Mapping[str, object]) -> None:
    durable.make_folder(folder)
    durable.write_file(folder / layout.EPOCH_HELD, json.dumps(record, allow_nan=False).encode())


def _read_record(folder: Path) -> tuple[int | None, Epoch | None]:
    """The epoch that is held, and the one that was about to be begun."""
    try:
        body = json.loads(durable.read_file(folder / layout.EPOCH_HELD, MAX_HELD_BYTES).decode())
        held, begins = body["epoch"], body.get("begins")
    except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
        return None, None
    begun = None
    if isinstance(begins, int) and begins > 0:
        with contextlib.suppress(ValueError, KeyError, AttributeError):  # ProtocolError among them
            begun = decode_epoch(begins, body["object"].encode())
    return held if isinstance(held, int) and held > 0 else None, begun


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
