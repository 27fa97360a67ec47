"""Nodes with folders of their own: parts in the store are a checkpoint once the chief has committed them, and never
before; each node fetches exactly what is named, and nothing that it has."""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from supervisor.host.mirror.run import MirroredRun, PartDamaged
from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import (
    FileRecord,
    Manifest,
    ManifestError,
    digest_of,
    record_files,
    verify_checkpoint,
)
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.mirror.fetching import fetch_named, locate
from supervisor.protocol.mirror.folder_epochs import fetched_epoch, local_checkpoints
from supervisor.protocol.mirror.keys import RemoteCheckpoint
from supervisor.protocol.mirror.store import Store, StoreError
from tests.host.mirror.test_run import Cut, FailingStore, host, made, made_store
from tests.mirror.stores import ObjectStore

CHIEFS = ("ckpt.data-00000-of-00002", "ckpt.index", "state.json")
OTHERS = ("ckpt.data-00001-of-00002", "worker-1.npz")


def write_parts(chief: Path, other: Path, step: int, attempt: int = 1) -> CheckpointName:
    """What two workers leave on the disks of their nodes."""
    name = CheckpointName(step, attempt)
    records: list[FileRecord] = []
    for folder, files in ((chief, CHIEFS), (other, OTHERS)):
        part = folder / name.part
        part.mkdir(parents=True)
        for number, file in enumerate(files):
            (part / file).write_bytes(f"{step} {file} {number} ".encode() * 50)
        records += record_files(part, files)
    manifest = Manifest("j", attempt, step, 1.0, tuple(records))
    (chief / name.part / layout.MANIFEST).write_bytes(manifest.to_bytes())
    return name


def committed(url: str, chief: Path, other: Path, step: int, attempt: int = 1) -> RemoteCheckpoint:
    name = write_parts(chief, other, step, attempt)
    run = host(url, chief)
    epoch = run.begin_epoch(None, 0) if not run.epochs() else max(run.epochs())
    files = (*host(url, other).upload_part(name, epoch), *run.upload_part(name, epoch))
    run.commit_parts(name, epoch, files)
    return RemoteCheckpoint(epoch, name)


def digest(chief: Path, remote: RemoteCheckpoint) -> str:
    return digest_of((chief / remote.name.part / layout.MANIFEST).read_bytes())


class CountingStore(Store):
    """Knows which files were read."""

    def __init__(self, url: str) -> None:
        super().__init__(made_store(url))
        self.read_files: list[str] = []

    def download(self, key: str) -> Iterator[memoryview]:
        self.read_files.append(key.rpartition("/")[2])
        return super().download(key)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


@pytest.mark.thorough
@pytest.mark.parametrize("after", [False, True])
def test_commit_of_parts_that_is_cut_anywhere_leaves_the_one_before_or_a_whole_one(tmp_path: Path, after: bool) -> None:
    outcomes = set()
    for at in itertools.count():
        url, chief, other = f"file://{tmp_path}/store{at}", tmp_path / f"c{at}", tmp_path / f"o{at}"
        older = committed(url, chief, other, 100)
        newer = write_parts(chief, other, 200)
        store = FailingStore(url, at, after)
        try:
            files = [
                file
                for folder in (other, chief)
                for file in MirroredRun(store, folder, 5).upload_part(newer, older.epoch)
            ]
            MirroredRun(store, chief, 5).commit_parts(newer, older.epoch, files)
            is_cut = False
        except Cut:
            is_cut = True

        there = host(url, tmp_path / f"new{at}").fetch(None, None)
        assert there.fetched in (older.name, newer)
        assert there.bad == ()
        verify_checkpoint(tmp_path / f"new{at}" / str(there.fetched))
        outcomes.add(there.fetched)
        if not is_cut:
            break
    assert outcomes == {older.name, newer}


@pytest.mark.parametrize("missing", [*CHIEFS, *OTHERS])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_nothing_is_committed_unless_every_file_is_there_with_its_size(
    tmp_path: Path, url: str, missing: str, damage: str
) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    name = write_parts(chief, other, 100)
    run = host(url, chief)
    epoch = run.begin_epoch(None, 0)
    files = (*host(url, other).upload_part(name, epoch), *run.upload_part(name, epoch))
    stored = tmp_path / "store" / f"e{epoch:04d}" / str(name) / missing
    if damage == "missing":
        stored.unlink()
    else:
        stored.write_bytes(stored.read_bytes()[:-1])

    with pytest.raises(ManifestError, match=missing):
        run.commit_parts(name, epoch, files)

    assert host(url, tmp_path / "new").fetch(None, None).fetched is None


@pytest.mark.parametrize("file", [*CHIEFS, *OTHERS])
def test_nothing_is_committed_that_a_disk_has_changed_since_the_worker_wrote_it(
    tmp_path: Path, url: str, file: str
) -> None:
    """Its size is as it was."""
    chief, other = tmp_path / "chief", tmp_path / "other"
    name = write_parts(chief, other, 100)
    path = (chief if file in CHIEFS else other) / name.part / file
    path.write_bytes(path.read_bytes().swapcase()[::-1])
    run = host(url, chief)
    epoch = run.begin_epoch(None, 0)
    files = (*host(url, other).upload_part(name, epoch), *run.upload_part(name, epoch))

    with pytest.raises(PartDamaged, match=f"{file} on its disk is not what the worker has written"):
        run.commit_parts(name, epoch, files)

    assert host(url, tmp_path / "new").fetch(None, None).fetched is None


@pytest.mark.parametrize("what", ["name", "size", "hash"])
def test_nothing_is_committed_that_no_node_says_it_has_uploaded(tmp_path: Path, url: str, what: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    name = write_parts(chief, other, 100)
    run = host(url, chief)
    epoch = run.begin_epoch(None, 0)
    first, *others = (*host(url, other).upload_part(name, epoch), *run.upload_part(name, epoch))
    changed = {"name": "other", "size": first.size + 1, "hash": others[0].hash}[what]
    said = replace(first, **{what: changed})  # type: ignore[arg-type]

    with pytest.raises(PartDamaged, match=first.name):
        run.commit_parts(name, epoch, (said, *others))

    assert host(url, tmp_path / "new").fetch(None, None).fetched is None


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["s3_store", "azure_store"])
def test_nothing_is_committed_once_the_store_has_another_version_of_a_file(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size: an upload that was given up long ago has come through late."""
    store = request.getfixturevalue(kind)
    assert isinstance(store, ObjectStore)
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)
    chief, other = tmp_path / "chief", tmp_path / "other"
    name = write_parts(chief, other, 100)
    run, node = (MirroredRun(Store(store.url, "j"), folder, 5) for folder in (chief, other))
    epoch = run.begin_epoch(None, 0)
    files = (*node.upload_part(name, epoch), *run.upload_part(name, epoch))
    assert all(file.tag is not None for file in files)
    late = (other / name.part / OTHERS[0]).read_bytes()[::-1]
    obstore.put(from_url(store.url), f"j/e{epoch:04d}/{name}/{OTHERS[0]}", late)

    with pytest.raises(ManifestError, match="is another one than was uploaded"):
        run.commit_parts(name, epoch, files)

    again = (*node.upload_part(name, epoch), *run.upload_part(name, epoch))
    assert run.commit_parts(name, epoch, again)[1] == (RemoteCheckpoint(epoch, name),)


def test_commit_whose_answer_was_lost_is_repeated_although_nothing_is_sent_again(tmp_path: Path, url: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    remote = committed(url, chief, other, 100)
    assert host(url, other).upload_part(remote.name, remote.epoch) == ()

    _, line = host(url, chief).commit_parts(remote.name, remote.epoch, ())

    assert line == (remote,)


def test_node_whose_part_is_gone_says_so(tmp_path: Path, url: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    name = write_parts(chief, other, 100)
    shutil.rmtree(other / name.part)

    with pytest.raises(FileNotFoundError):
        host(url, other).upload_part(name, 1)


def test_named_checkpoint_is_fetched_but_for_the_files_that_the_node_wrote(tmp_path: Path, url: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    older, newer = committed(url, chief, other, 100), committed(url, chief, other, 200)

    for folder, own in ((chief, CHIEFS), (other, OTHERS), (tmp_path / "spare", ())):
        for remote in (older, newer):
            store = CountingStore(url)
            fetch_named(MirroredRun(store, folder, 5), folder, remote, digest(chief, remote))

            assert sorted(store.read_files) == sorted({*CHIEFS, *OTHERS} - {*own})
            assert local_checkpoints(folder) == [remote.name], "the copy of another one is deleted"
            verify_checkpoint(folder / str(remote.name))
            assert fetched_epoch(folder / str(remote.name)) == remote.epoch
        store = CountingStore(url)
        fetch_named(MirroredRun(store, folder, 5), folder, newer, digest(chief, newer))
        assert store.read_files == [], "it is there, and proven"


@pytest.mark.parametrize("damage", ["flipped", "cut", "of another step", "a link"])
def test_own_file_that_is_not_what_the_manifest_says_is_fetched(tmp_path: Path, url: str, damage: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    older, newer = committed(url, chief, other, 100), committed(url, chief, other, 200)
    own = other / newer.name.part / OTHERS[0]
    content = bytearray(own.read_bytes())
    match damage:
        case "flipped":
            content[7] ^= 1
            own.write_bytes(content)
        case "cut":
            own.write_bytes(content[:-1])
        case "of another step":
            own.write_bytes((other / older.name.part / OTHERS[0]).read_bytes())
        case "a link":
            own.rename(tmp_path / "elsewhere")
            own.symlink_to(tmp_path / "elsewhere")
    store = CountingStore(url)

    fetch_named(MirroredRun(store, other, 5), other, newer, digest(chief, newer))

    assert OTHERS[0] in store.read_files
    verify_checkpoint(other / str(newer.name))


def test_checkpoint_with_another_manifest_than_the_chiefs_is_refused(tmp_path: Path, url: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    older, newer = committed(url, chief, other, 100), committed(url, chief, other, 200)

    with pytest.raises(ManifestError, match="is not the one that the chief's node restores"):
        fetch_named(host(url, other), other, newer, digest(chief, older))

    assert local_checkpoints(other) == []


def test_another_checkpoint_of_the_name_is_set_aside(tmp_path: Path, url: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    remote = committed(url, chief, other, 100)
    made(other, 100)  # of the node's own, from before

    fetch_named(host(url, other), other, remote, digest(chief, remote))

    assert (other / layout.QUARANTINE / str(remote.name)).is_dir()
    verify_checkpoint(other / str(remote.name))
    assert digest_of((other / str(remote.name) / layout.MANIFEST).read_bytes()) == digest(chief, remote)


def test_damaged_in_the_store_it_is_refused_and_leaves_nothing(tmp_path: Path, url: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    remote = committed(url, chief, other, 100)
    stored = tmp_path / "store" / str(remote) / "state.json"
    stored.write_bytes(stored.read_bytes().swapcase())

    with pytest.raises(ManifestError, match=r"state\.json"):
        fetch_named(host(url, other), other, remote, digest(chief, remote))

    assert [path.name for path in other.iterdir()] == [remote.name.part]


def test_only_the_very_checkpoint_that_the_store_counts_is_located(tmp_path: Path, url: str) -> None:
    chief, other = tmp_path / "chief", tmp_path / "other"
    remote = committed(url, chief, other, 100)
    fetch_named(host(url, chief), chief, remote, digest(chief, remote))
    mine = made(tmp_path / "alone", 100)
    elsewhere = made(chief, 150)

    assert locate(host(url, chief), chief, remote.name) == (remote.epoch, digest(chief, remote))
    assert locate(host(url, chief), tmp_path / "alone", mine) is None
    assert locate(host(url, chief), chief, elsewhere) is None


def test_parts_of_another_try_change_nothing_of_what_is_committed(tmp_path: Path, url: str) -> None:
    """The worker was told that the store failed, and had written it all the same; then it saves that step again."""
    chief, other = tmp_path / "chief", tmp_path / "other"
    remote = committed(url, chief, other, 100)
    for folder, files in ((chief, CHIEFS), (other, OTHERS)):
        for file in files:
            (folder / remote.name.part / file).write_bytes(b"of the second try")
    again = Manifest("j", 1, 100, 2.0, tuple(
        FileRecord(file, *durable.hash_file(folder / remote.name.part / file))
        for folder, files in ((chief, CHIEFS), (other, OTHERS)) for file in files
    ))  # fmt: skip
    (chief / remote.name.part / layout.MANIFEST).write_bytes(again.to_bytes())
    files = [file for folder in (chief, other) for file in host(url, folder).upload_part(remote.name, remote.epoch)]
    assert files == []
    with pytest.raises((StoreError, ManifestError)):
        host(url, chief).commit_parts(remote.name, remote.epoch, files)

    there = host(url, tmp_path / "new").fetch(None, None)
    assert (there.fetched, there.bad) == (remote.name, ())
