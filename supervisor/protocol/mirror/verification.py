"""Verifies every checkpoint below a URL of a store, to the last byte, and says which of them count. Changes nothing.

The URL may lead to one checkpoint, to one run, or to the prefix of several. Nothing is written to a disk: a file is
hashed as it comes.
"""

from collections.abc import Mapping

import xxhash

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import FileRecord, ManifestError
from supervisor.protocol.checkpoints.verification import MAX_LOOKS, VerifiedCheckpoint
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.keys import parse_epoch_key
from supervisor.protocol.mirror.line import checkpoints_on_line
from supervisor.protocol.mirror.remote_run import (
    RemoteRun,
    check_file,
    committed,
    key_in,
    read_file,
    read_manifest,
)
from supervisor.protocol.mirror.store import Store

NOT_ON_LINE = "does not count: another host has gone on with this run from an earlier checkpoint"


def verify_url(url: str) -> list[VerifiedCheckpoint]:
    """The checkpoints below a URL, newest first. Raises StoreError.

    One that retention deletes meanwhile is left out, and what was uploaded since is looked for.
    """
    store = Store(url)
    found: dict[str, VerifiedCheckpoint] = {}
    names: dict[str, CheckpointName] = {}
    for _ in range(MAX_LOOKS):
        keys = [key for key, _, _ in store.list_keys("")]
        listed = {key.rpartition("/")[0]: name for key in keys if (name := _committed_name(key, url)) is not None}
        new = {folder: name for folder, name in listed.items() if folder not in names}
        names |= new
        counted = _folders_that_count(url, keys)
        for folder in _newest_first(new):
            verified = _verify(store, folder, new[folder], counted)
            if verified is not None:
                found[folder] = verified
        if found.keys() >= new.keys():
            break
    return [found[folder] for folder in _newest_first(names) if folder in found]


def _newest_first(folders: Mapping[str, CheckpointName]) -> list[str]:
    return sorted(folders, key=lambda folder: (folders[folder], folder), reverse=True)


def _committed_name(key: str, url: str) -> CheckpointName | None:
    """The checkpoint that a key commits; None if it is another key."""
    place, _, name = f"{url.rstrip('/')}/{key}".rpartition("/")
    return parse_name(place.rpartition("/")[2]) if name == layout.MANIFEST else None


def _folders_that_count(url: str, keys: list[str]) -> dict[str, bool]:
    """By folder of a run's checkpoint: whether it is on the run's line. A folder that is no run's is not in it."""
    found = dict[str, bool]()
    for root in {root for key in keys if (root := _root_of_epoch(key)) is not None}:
        run = RemoteRun(Store(f"{url.rstrip('/')}/{root}" if root else url))
        there = committed(run.files())
        line = set(checkpoints_on_line(run.epochs(), there))
        found |= {key_in(root, str(each)): each in line for each in there}
    return found


def _root_of_epoch(key: str) -> str | None:
    """The prefix of the run whose epoch a key begins, without a slash at its end; None if it is another key."""
    parts = key.split("/")
    is_epoch = len(parts) >= 2 and parse_epoch_key("/".join(parts[-2:])) is not None
    return "/".join(parts[:-2]) if is_epoch else None


def _verify(store: Store, folder: str, name: CheckpointName, counted: dict[str, bool]) -> VerifiedCheckpoint | None:
    """None: it is gone. Whoever deletes one begins with its manifest."""
    shown = folder if folder and folder.isprintable() else str(name)
    counts = counted.get(folder, True)
    try:
        manifest, _ = read_manifest(store, folder)
        if manifest.name != name:
            raise ManifestError(f"{layout.MANIFEST} says {manifest.name}, its place {name}")
        for file in manifest.files:
            _check(store, folder, file)
    except ManifestError as error:
        if store.size(key_in(folder, layout.MANIFEST)) is None:
            return None
        return VerifiedCheckpoint(
            shown, "stepkeeper", name.step, name.attempt, None, None, False, str(error), counts=counts
        )
    return VerifiedCheckpoint(
        shown,
        "stepkeeper",
        name.step,
        name.attempt,
        manifest.created_wall_at,
        manifest.size_bytes,
        True,
        None if counts else NOT_ON_LINE,
        counts=counts,
    )


def _check(store: Store, folder: str, expected: FileRecord) -> None:
    digest, size = xxhash.xxh3_128(), 0
    for piece in read_file(store, folder, expected):
        digest.update(piece)
        size += len(piece)
    check_file(expected, size, f"xxh3_128:{digest.hexdigest()}")
