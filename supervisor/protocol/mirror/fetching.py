"""How a checkpoint comes from a store into a folder, and what of the folder still counts.

Into `….partial`, hashed while it is written, compared with the manifest, synced and renamed, as the worker's own
checkpoints are. What does not agree is refused, and the next older one is tried.

What another host has left behind has to leave the folder before anything is fetched: which checkpoint is then the
newest whole one here decides what is newer.

Where the nodes of a gang have folders of their own, the chief's fetches as ever, and the others what the chief names
(`fetch_named`). A node keeps its own files of the newest checkpoint (`….part`). If they have the hashes of the
manifest, they are not fetched again.
"""

import os
import shutil
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import removal
from supervisor.protocol.checkpoints.manifest import (
    MAX_BYTES,
    FileRecord,
    ManifestError,
    digest_of,
    verify_checkpoint,
)
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.folder_epochs import (
    encode_fetched,
    epochs_of_checkpoints,
    fetched_epoch,
    given_up_in,
    held_epoch,
    is_of_other_store,
    known_epoch,
    local_checkpoints,
    record_seen,
    record_store,
)
from supervisor.protocol.mirror.keys import RemoteCheckpoint
from supervisor.protocol.mirror.line import checkpoints_on_line, left_behind
from supervisor.protocol.mirror.other_run import OtherRun, find_other_run, refuse_empty_list
from supervisor.protocol.mirror.remote_run import RemoteRun, check_file, committed, read_file, read_manifest


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What was fetched (None: there is nothing newer). `epoch`: the highest there is; 0: nobody ever began one.

    `attempt`: the highest in a remote checkpoint's name. `newest`: the newest remote one that counts and may be used;
    `seen`: the newest that counts, whether it may be used or not; `standing`: the same without what this host has given
    up, None where it may be of another training. `left_behind`: local checkpoints that another host's
    epoch left behind; if there are any, nothing was fetched, and the caller sets them aside and asks again. `bad`:
    remote ones that were refused, with the reason. `is_held`: the newest epoch is this host's, or there is none.
    `has_gone_on`: another host has uploaded, after it took the run over, what this host did not see when an attempt of
    it began last. `other`: how both may be of another training, if only a look was asked for.
    """

    fetched: CheckpointName | None
    epoch: int
    attempt: int
    newest: CheckpointName | None
    seen: CheckpointName | None
    left_behind: tuple[CheckpointName, ...]
    bad: tuple[tuple[RemoteCheckpoint, str], ...]
    is_held: bool
    standing: CheckpointName | None = None
    has_gone_on: bool = False
    other: OtherRun | None = None


def fetch(
    run: RemoteRun,
    folder: Path,
    newer_than: CheckpointName | None,
    below: int | None = None,
    unwanted: Collection[str] = (),
    only_look: bool = False,
    is_chosen: bool = False,
) -> FetchResult:
    """Fetches the newest checkpoint that counts and is newer than one (None: any), below a step (None: any).

    `is_chosen`: an operator has said that training goes on from there.

    Those that are in the folder already are not fetched: what chose an older one had its reasons. Nor are those that
    this host has given up, also if it was killed before the store could learn of that.

    Raises OtherRun and other StoreErrors, and OSError if the folder can't be written.
    """
    epochs, checkpoints = run.epochs(), committed(run.files())
    line = checkpoints_on_line(epochs, checkpoints)
    if not (line or only_look) and epochs:
        refuse_empty_list(run, epochs[max(epochs)])
    other = None if is_chosen else find_other_run(run, folder, lambda: line)
    if other is not None and not only_look:
        raise other
    if not only_look:
        record_store(folder, run.store.url)
    latest, attempt = max(epochs, default=0), max((checkpoint.name.attempt for checkpoint in checkpoints), default=0)
    here = local_checkpoints(folder)
    is_elsewhere = is_of_other_store(folder, run.store.url)
    behind = () if is_elsewhere else left_behind(epochs_of_checkpoints(folder, epochs), epochs)
    is_given_up = given_up_in(folder)
    counting = [checkpoint for checkpoint in line if not is_given_up(checkpoint.name)]
    wanted = [remote for remote in counting if _is_wanted(remote.name, below, unwanted)]
    known, held = (0, 0) if is_elsewhere else (known_epoch(folder, epochs), held_epoch(folder, epochs) or 0)
    has_gone_on = any(checkpoint.epoch > known for checkpoint in counting)
    fetched, bad = None, list[tuple[RemoteCheckpoint, str]]()
    if not (only_look or behind):
        record_seen(folder, 1 + max((attempt, *(name.attempt for name in here))), latest, epochs)
        newer = (checkpoint for checkpoint in wanted if newer_than is None or checkpoint.name > newer_than)
        fetched, bad = _fetch_first(run, folder, [checkpoint for checkpoint in newer if checkpoint.name not in here])
    refused = {checkpoint for checkpoint, _ in bad}
    newest = next((checkpoint.name for checkpoint in wanted if checkpoint not in refused), None)
    seen = max((checkpoint.name for checkpoint in line), default=None)
    standing = None if other is not None else max((checkpoint.name for checkpoint in counting), default=None)
    return FetchResult(
        fetched, latest, attempt, newest, seen, behind, tuple(bad), latest <= held, standing, has_gone_on, other
    )


def _is_wanted(name: CheckpointName, below: int | None, unwanted: Collection[str]) -> bool:
    return (below is None or name.step < below) and str(name) not in unwanted


def _fetch_first(
    run: RemoteRun, folder: Path, wanted: Iterable[RemoteCheckpoint]
) -> tuple[CheckpointName | None, list[tuple[RemoteCheckpoint, str]]]:
    """Fetches the first that is whole; which that is, and those before it, each with its reason."""
    bad: list[tuple[RemoteCheckpoint, str]] = []
    for checkpoint in wanted:
        try:
            _download(run, checkpoint, folder)
        except ManifestError as error:
            bad.append((checkpoint, str(error)))
        else:
            return checkpoint.name, bad
    return None, bad


def locate(run: RemoteRun, folder: Path, name: CheckpointName) -> tuple[int, str] | None:
    """Under which epoch the store has the very checkpoint that the folder has, and its manifest's digest.

    None if it has it not, or another one of that name, or it does not count. Raises StoreError, OSError.
    """
    content = durable.read_file(folder / str(name) / layout.MANIFEST, MAX_BYTES + 1)
    for remote in checkpoints_on_line(run.epochs(), committed(run.files())):
        if remote.name == name and run.store.read(remote.manifest, MAX_BYTES) == content:
            return remote.epoch, digest_of(content)
    return None


def fetch_named(run: RemoteRun, folder: Path, remote: RemoteCheckpoint, digest: str) -> None:
    """Has the folder contain exactly this checkpoint, proven by its manifest, which has this digest.

    Other copies from the mirror are deleted then. One of this name that differs goes to quarantine.

    Raises ManifestError if the store has another one, or it is not whole; StoreError, OSError.
    """
    _, content = read_manifest(run.store, str(remote))
    if digest_of(content) != digest:
        raise ManifestError(f"{remote} in the mirror is not the one that the chief's node restores")
    here = folder / str(remote.name)
    if here.is_dir() and (why := _why_other(here, content)) is not None:
        move_to_quarantine(folder, remote.name, why)
    if not here.is_dir():
        _download(run, remote, folder)
    for name in local_checkpoints(folder):
        if name != remote.name and fetched_epoch(folder / str(name)) is not None:
            removal.delete_checkpoint(folder, name)


def _why_other(here: Path, content: bytes) -> str | None:
    """Why a checkpoint here is not the whole one with this manifest; None if it is. Raises OSError."""
    try:
        verify_checkpoint(here)
        is_same = durable.read_file(here / layout.MANIFEST, MAX_BYTES + 1) == content
    except ManifestError as error:
        return str(error)
    return None if is_same else "the mirror has another checkpoint of this name"


def _download(run: RemoteRun, remote: RemoteCheckpoint, target: Path) -> None:
    """Raises ManifestError if it is not whole."""
    manifest, content = read_manifest(run.store, str(remote))
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
            copied = 0
            for file in manifest.files:
                if not _take_own(target / remote.name.part / file.name, file, folder):
                    _download_file(run, remote, file, folder, copied, manifest.size_bytes)
                copied += file.size
            folder.add(layout.FETCHED, encode_fetched(remote.epoch))
            folder.add(layout.MANIFEST, content)
            folder.commit(target / str(remote.name))
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _take_own(own: Path, expected: FileRecord, folder: NewFolder) -> bool:
    """Whether this node wrote the file itself, and has it whole; then it gets a second name in `folder`."""
    try:
        status = own.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size != expected.size:
            return False
        if durable.hash_file(own) != (expected.size, expected.hash):
            return False
        os.link(own, folder.path / expected.name)
    except OSError:  # it is not there or can't be read, or the file system has no links: it is fetched
        return False
    folder.record(expected.name, expected.size, expected.hash)
    return True


def _download_file(
    run: RemoteRun, remote: RemoteCheckpoint, expected: FileRecord, folder: NewFolder, copied: int, size: int
) -> None:
    """`copied`: the bytes of the files before it, of `size` bytes of all files, for the progress."""
    file = folder.create(expected.name)
    for piece in read_file(run.store, str(remote), expected):
        file.write(piece)
        copied += len(piece)
        run.on_progress(copied, size)
    check_file(expected, *file.end())
