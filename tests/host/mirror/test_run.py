"""What a crash, a liar or a rival can do to a run in a store: nothing that a fetch would take for a checkpoint."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from io import RawIOBase
from pathlib import Path

import pytest

from supervisor.host.mirror.epochs import TakenOver
from supervisor.host.mirror.run import MirroredRun
from supervisor.host.mirror.tidying import GIVEN_UP_AGE
from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import Manifest, ManifestError, record_files, verify_checkpoint
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from supervisor.protocol.layout import CheckpointName, parse_name
from supervisor.protocol.mirror.folder_epochs import held_epoch, local_checkpoints, record_given_up
from supervisor.protocol.mirror.keys import RemoteCheckpoint
from supervisor.protocol.mirror.other_run import OtherRun
from supervisor.protocol.mirror.store import Store, StoreError

FILES = ("ckpt.data-00000-of-00001", "ckpt.index", "state.json")


class Cut(Exception):
    """The process was killed here."""


class FailingStore(Store):
    """Ends at its operation number `at`: before it, or, with `after`, when it is done and nobody was told."""

    def __init__(self, url: str, at: int, after: bool, error: type[Exception] = Cut) -> None:
        super().__init__(made_store(url))
        self.done = 0
        self._at, self._after, self._error = at, after, error

    def _step(self, is_after: bool) -> None:
        if is_after is self._after and self.done == self._at:
            self.done += 1
            raise self._error("here")
        if is_after:
            self.done += 1

    def list_keys(self, prefix: str) -> Iterator[tuple[str, int, datetime]]:
        self._step(False)
        yield from list(super().list_keys(prefix))
        self._step(True)

    def create(self, key: str, content: bytes) -> bool:
        self._step(False)
        created = super().create(key, content)
        self._step(True)
        return created

    def upload(self, key: str, path: Path, pieces_of: Callable[[RawIOBase], Iterable[bytes]]) -> None:
        self._step(False)
        super().upload(key, path, pieces_of)
        self._step(True)

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            self._step(False)
            super().delete([key])
            self._step(True)


def made(folder: Path, step: int, attempt: int = 1, *more: str) -> CheckpointName:
    """A checkpoint on the local disk. `more`: names of further files in it."""
    name, files = CheckpointName(step, attempt), (*FILES, *more)
    place = folder / str(name)
    place.mkdir(parents=True)
    for number, file in enumerate(files):
        (place / file).write_bytes(f"{step} {number} ".encode() * 50)
    manifest = Manifest("j", attempt, step, 1.0, record_files(place, files))
    (place / layout.MANIFEST).write_bytes(manifest.to_bytes())
    return name


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def host(url: str, folder: Path, keep: int = 5) -> MirroredRun:
    return MirroredRun(Store(made_store(url)), folder, keep)


def made_store(url: str) -> str:
    """The URL, of a store whose folder exists."""
    if url.startswith("file://"):
        Path(url.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
    return url


@pytest.mark.thorough
@pytest.mark.parametrize("after", [False, True])
def test_upload_that_is_cut_anywhere_leaves_nothing_or_a_whole_checkpoint(tmp_path: Path, after: bool):
    outcomes = set()
    for at in itertools.count():
        url, folder = f"file://{tmp_path}/store{at}", tmp_path / f"a{at}"
        older, newer = made(folder, 100), made(folder, 200)
        epoch = host(url, folder).begin_epoch(older, 0)
        host(url, folder).upload(older, epoch)
        store = FailingStore(url, at, after)
        try:
            MirroredRun(store, folder, 1).upload(newer, epoch)
            is_cut = False
        except Cut:
            is_cut = True

        found = host(url, tmp_path / f"b{at}").fetch(None, None)
        assert found.fetched in (older, newer)
        assert found.bad == ()
        verify_checkpoint(tmp_path / f"b{at}" / str(found.fetched))
        outcomes.add(found.fetched)
        if not is_cut:
            break
    assert outcomes == {older, newer}


def test_progress_of_a_fetch_grows_over_all_files_up_to_the_whole(tmp_path: Path, url: str):
    name = made(tmp_path / "a", 100)
    sizes = [(tmp_path / "a" / str(name) / file).stat().st_size for file in FILES]
    old, new, told = host(url, tmp_path / "a"), host(url, tmp_path / "b"), list[tuple[int, int]]()
    old.upload(name, old.begin_epoch(name, 0))
    new.on_progress = lambda copied, of: told.append((copied, of))

    new.fetch(None, None)

    assert told == [(copied, sum(sizes)) for copied in itertools.accumulate(sizes)]


def test_fetch_that_is_cut_leaves_no_checkpoint_and_is_done_again(tmp_path: Path, url: str, monkeypatch):
    name = made(tmp_path / "a", 100)
    old = host(url, tmp_path / "a")
    old.upload(name, old.begin_epoch(name, 0))
    new = host(url, tmp_path / "b")

    def cut(self: Store, key: str) -> Iterator[memoryview]:
        yield memoryview(b"100 0 ")
        raise StoreError("cannot download: connection reset")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "download", cut)
        with pytest.raises(StoreError, match="connection reset"):
            new.fetch(None, None)
    assert local_checkpoints(new.folder) == []

    assert new.fetch(None, None).fetched == name


def test_answer_that_was_lost_is_no_other_host(tmp_path: Path, url: str):
    name = made(tmp_path / "a", 100)
    epoch = host(url, tmp_path / "a").begin_epoch(name, 0)
    for at in range(12):
        store = FailingStore(url, at, after=True, error=StoreError)
        try:
            MirroredRun(store, tmp_path / "a", 5).upload(name, epoch)
        except StoreError:
            continue

    assert host(url, tmp_path / "a").upload(name, epoch)[1][0].name == name


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_checkpoint_that_the_disk_has_damaged_is_not_committed_in_the_store(tmp_path: Path, url: str, damage: str):
    folder = tmp_path / "here"
    sound, damaged = made(folder, 100), made(folder, 200)
    path = folder / str(damaged) / FILES[0]
    path.write_bytes(path.read_bytes()[::-1] if damage == "flipped" else path.read_bytes()[:-1])
    here = host(url, folder)
    epoch = here.begin_epoch(None, 0)
    here.upload(sound, epoch)

    with pytest.raises(ManifestError, match=f"{FILES[0]} on its disk is not what the worker has written"):
        here.upload(damaged, epoch)

    assert host(url, tmp_path / "new").fetch(None, None).fetched == sound


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "delete", "empty manifest", "path in manifest"])
def test_bad_remote_checkpoint_is_refused_and_the_older_one_is_fetched(tmp_path: Path, url: str, damage: str):
    folder = tmp_path / "a"
    older, newer = made(folder, 100), made(folder, 200)
    run = host(url, folder)
    epoch = run.begin_epoch(older, 0)
    run.upload(older, epoch)
    run.upload(newer, epoch)
    place = tmp_path / "store" / "e0001" / str(newer)
    data, manifest = place / FILES[0], place / layout.MANIFEST
    content = data.read_bytes()
    match damage:
        case "flip":
            data.write_bytes(content[:7] + bytes([content[7] ^ 1]) + content[8:])
        case "cut":
            data.write_bytes(content[:-1])
        case "grow":
            data.write_bytes(content + b"x")
        case "delete":
            data.unlink()
        case "empty manifest":
            manifest.write_bytes(b"")
        case "path in manifest":
            manifest.write_bytes(manifest.read_bytes().replace(b"ckpt.index", b"../x.index"))

    found = host(url, tmp_path / "b").fetch(None, None)

    assert found.fetched == older
    assert [str(each.name) for each, _ in found.bad] == [str(newer)]
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [layout.EPOCH_HELD, str(older)]


def test_rival_that_commits_after_its_look_does_not_count(tmp_path: Path, url: str):
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 100)
    epoch = first.begin_epoch(shared, 0)
    first.upload(shared, epoch)
    late = made(tmp_path / "a", 900)
    second.fetch(None, None)

    class Slow(FailingStore):
        def create(self, key: str, content: bytes) -> bool:
            if key.endswith(layout.MANIFEST):
                second.begin_epoch(shared, epoch)  # between the last look and the commit
            return super().create(key, content)

    with pytest.raises(TakenOver, match="epoch 2"):
        MirroredRun(Slow(url, -1, after=False), tmp_path / "a", 5).upload(late, epoch)

    found = host(url, tmp_path / "c").fetch(None, None)
    assert found.fetched == shared
    with pytest.raises(TakenOver, match="epoch 2"):
        first.upload(made(tmp_path / "a", 950), epoch)


def test_of_hosts_that_begin_at_once_one_holds_the_run(tmp_path: Path, url: str):
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")

    class Rival(FailingStore):
        def create(self, key: str, content: bytes) -> bool:
            second.begin_epoch(None, 0)
            return super().create(key, content)

    with pytest.raises(TakenOver):
        MirroredRun(Rival(url, -1, after=False), tmp_path / "a", 5).begin_epoch(None, 0)

    assert (held_epoch(first.folder, first.epochs()), held_epoch(second.folder, first.epochs())) == (None, 1)
    with pytest.raises(TakenOver):
        host(url, tmp_path / "a").begin_epoch(None, 0)


Listed = tuple[str, int, datetime]


class Lying(Store):
    """Its lists are what `lie` makes of them."""

    def __init__(self, url: str, lie: Callable[[list[Listed]], Iterable[Listed]]) -> None:
        super().__init__(made_store(url))
        self._lie = lie

    def list_keys(self, prefix: str) -> Iterator[Listed]:
        yield from self._lie(list(super().list_keys(prefix)))


def hiding(url: str, part: str) -> Store:
    """Its lists leave out the keys with this part."""
    return Lying(url, lambda listed: (each for each in listed if part not in each[0]))


def inventing(url: str, *keys: str) -> Store:
    """Its lists have these keys too."""
    return Lying(url, lambda listed: [*listed, *[(key, 1, datetime.now(UTC)) for key in keys]])


def test_rival_that_no_list_shows_holds_the_run(tmp_path: Path, url: str):
    host(url, tmp_path / "a").begin_epoch(None, 0)

    with pytest.raises(TakenOver, match="epoch 1"):
        MirroredRun(hiding(url, "epoch/"), tmp_path / "b", 5).begin_epoch(None, 0)

    assert held_epoch(tmp_path / "b", {}) is None


@pytest.mark.parametrize("after", [False, True])
def test_host_that_is_killed_while_it_begins_an_epoch_knows_it_again(tmp_path: Path, after: bool):
    for at in itertools.count():
        url, folder = f"file://{tmp_path}/store{at}", tmp_path / f"a{at}"
        older, newer = made(folder, 100), made(folder, 200)
        host(url, folder).upload(older, host(url, folder).begin_epoch(older, 0))
        try:
            MirroredRun(FailingStore(url, at, after), folder, 5).begin_epoch(newer, 1)
            is_cut = False
        except Cut:
            is_cut = True

        found = host(url, folder).fetch(newer, None)
        assert found.left_behind == ()
        assert host(url, folder).begin_epoch(newer, 1) == found.epoch + 1
        if not is_cut:
            break
    assert at > 2


def test_host_whose_own_epoch_no_list_shows_is_not_taken_over(tmp_path: Path, url: str):
    shared = made(tmp_path / "a", 100)
    host(url, tmp_path / "a").begin_epoch(shared, 0)

    assert MirroredRun(hiding(url, "epoch/"), tmp_path / "a", 5).begin_epoch(shared, 0) == 2


@pytest.mark.parametrize("goes_on", [False, True])
def test_request_that_arrives_late_is_no_other_host(tmp_path: Path, url: str, goes_on: bool):
    """The first try seems to fail, the second, from the same checkpoint or another, finds nothing of it; it arrives."""
    shared = made(tmp_path / "a", 100)
    host(url, tmp_path / "a").upload(shared, host(url, tmp_path / "a").begin_epoch(None, 0))
    sent: list[tuple[str, bytes]] = []

    class Late(FailingStore):
        def create(self, key: str, content: bytes) -> bool:
            if not sent:
                sent.append((key, content))
                raise StoreError("timed out")
            Store(url).create(*sent[0])
            return super().create(key, content)

    run = MirroredRun(Late(url, -1, after=False), tmp_path / "a", 5)
    with pytest.raises(StoreError, match="timed out"):
        run.begin_epoch(shared, 1)
    if not goes_on:
        with pytest.raises(StoreError, match="came through late"):
            run.begin_epoch(None, 1)

    assert run.begin_epoch(shared if goes_on else None, 1) == (2 if goes_on else 3)


def test_empty_host_finds_the_last_epoch_although_no_list_shows_it(tmp_path: Path, url: str):
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 100)
    first.upload(shared, first.begin_epoch(None, 0))
    second.fetch(None, None)
    second.upload(newer := made(tmp_path / "b", 200, 2), second.begin_epoch(shared, 1))

    found = MirroredRun(hiding(url, "epoch/0002"), tmp_path / "c", 5).fetch(None, None)

    assert (found.fetched, found.epoch) == (newer, 2)


@pytest.mark.parametrize("hidden", ["", "e0001/"])
def test_empty_host_does_not_begin_anew_where_a_list_hides_what_the_first_host_did(
    tmp_path: Path, url: str, hidden: str
):
    shared = made(tmp_path / "a", 100)
    first = host(url, tmp_path / "a")
    first.upload(shared, first.begin_epoch(None, 0))

    with pytest.raises(StoreError, match=r"lists no checkpoint of this run.*\(epoch 1\); wait"):
        MirroredRun(hiding(url, hidden), tmp_path / "b", 5).fetch(None, None)


def test_host_that_died_before_its_first_upload_keeps_nobody_waiting(tmp_path: Path, url: str):
    host(url, tmp_path / "a").begin_epoch(None, 0)

    assert host(url, tmp_path / "b").fetch(None, None).fetched is None


def test_checkpoint_that_only_a_list_has_is_not_chosen_nor_shown(tmp_path: Path, url: str):
    older, newer = made(tmp_path / "a", 100), made(tmp_path / "a", 200)
    store = inventing(
        url, "e0001/step-0000000900.a7/MANIFEST.json", "epoch/0009", "e0009/step-0000000950.a1/MANIFEST.json"
    )
    run = MirroredRun(store, tmp_path / "a", 5)
    run.upload(older, epoch := run.begin_epoch(None, 0))

    _, line = run.upload(newer, epoch)
    found = MirroredRun(store, tmp_path / "b", 5).fetch(None, None)

    assert epoch == 1
    assert [each.name for each in line] == [newer, older]
    assert (found.fetched, found.newest) == (newer, newer)


def test_retention_deletes_nothing_because_of_a_list_that_is_wrong(tmp_path: Path, url: str):
    older, newer = made(tmp_path / "a", 100), made(tmp_path / "a", 200)
    first = host(url, tmp_path / "a")
    first.upload(older, epoch := first.begin_epoch(None, 0))
    first.upload(newer, epoch)
    last = made(tmp_path / "a", 300)

    def old_without_manifests(listed: list[Listed]) -> list[Listed]:
        long_ago = datetime.now(UTC) - timedelta(days=9)
        return [(key, size, long_ago) for key, size, _ in listed if not key.endswith("MANIFEST.json")]

    MirroredRun(Lying(url, old_without_manifests), tmp_path / "a", 5).upload(last, epoch)
    invented = [f"e0001/step-0000000{step}.a1/MANIFEST.json" for step in range(900, 910)]
    MirroredRun(inventing(url, *invented), tmp_path / "a", 3).upload(last, epoch)

    for name in (older, newer, last):
        found = host(url, tmp_path / f"b{name.step}").fetch(None, name.step + 1)
        assert (found.fetched, found.bad) == (name, ())


def test_list_that_says_everything_twice_changes_nothing(tmp_path: Path, url: str):
    store = Lying(url, lambda listed: [*listed, *listed])
    run = MirroredRun(store, tmp_path / "a", 2)
    names = [made(tmp_path / "a", step) for step in (100, 200, 300)]
    epoch = run.begin_epoch(None, 0)
    for name in names:
        _, line = run.upload(name, epoch)

    assert [each.name for each in line][:2] == names[:0:-1]
    assert MirroredRun(store, tmp_path / "b", 2).fetch(None, None).fetched == names[-1]


def test_lost_answer_to_the_begin_of_an_epoch_is_no_other_host(tmp_path: Path, url: str):
    store = FailingStore(url, 3, after=True, error=StoreError)  # three lists before it
    run = MirroredRun(store, tmp_path / "a", 5)
    with pytest.raises(StoreError):
        run.begin_epoch(None, 0)
    assert (tmp_path / "store" / "epoch" / "0001").exists()

    assert run.begin_epoch(None, 0) == 2


def test_empty_host_waits_for_a_list_that_lacks_what_the_last_host_went_on_from(tmp_path: Path, url: str):
    shared = made(tmp_path / "a", 100)
    first = host(url, tmp_path / "a")
    first.upload(shared, first.begin_epoch(None, 0))
    second = host(url, tmp_path / "b")
    second.fetch(None, None)
    second.begin_epoch(shared, 1)

    with pytest.raises(StoreError, match="step-0000000100"):
        MirroredRun(hiding(url, "e0001/"), tmp_path / "c", 5).fetch(None, None)

    assert host(url, tmp_path / "c").fetch(None, None).fetched == shared


def test_host_that_holds_the_run_goes_on_without_a_look_until_another_has_it(tmp_path: Path, url: str):
    shared = made(tmp_path / "a", 100)
    assert host(url, tmp_path / "a").begin_epoch(shared, 0) == 1
    assert host(url, tmp_path / "a").begin_epoch(shared, 0) == 2
    host(url, tmp_path / "b").begin_epoch(shared, 2)

    with pytest.raises(TakenOver, match="epoch 3"):
        host(url, tmp_path / "a").begin_epoch(shared, 0)


def replaced_host(tmp_path: Path, url: str) -> tuple[MirroredRun, CheckpointName, CheckpointName]:
    """One from which another has taken over at step 100; that checkpoint, and one that it has made since."""
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 100)
    first.upload(shared, first.begin_epoch(shared, 0))
    second.fetch(None, None)
    second.upload(made(tmp_path / "b", 150, 2), second.begin_epoch(shared, 1))
    return first, shared, made(tmp_path / "a", 900)


def test_host_that_was_replaced_learns_what_it_left_behind(tmp_path: Path, url: str):
    first, shared, stray = replaced_host(tmp_path, url)

    found = first.fetch(stray, None)

    assert (found.left_behind, found.fetched) == ((stray,), None)
    move_to_quarantine(first.folder, stray, "left behind")
    assert str(first.fetch(shared, None).fetched) == "step-0000000150.a2"


def test_host_that_does_not_know_what_it_held_takes_nothing_for_its_own(tmp_path: Path, url: str):
    first, _, stray = replaced_host(tmp_path, url)
    record = first.folder / layout.EPOCH_HELD
    whole = record.read_bytes()
    record.write_bytes(whole[:-1])

    for use in (lambda: first.fetch(stray, None), lambda: first.take_over(stray, 2, stray)):
        with pytest.raises(OSError, match="damaged"):
            use()

    record.write_bytes(whole)
    assert first.fetch(stray, None).left_behind == (stray,)


def test_host_that_returns_goes_on_from_what_it_fetched_also_at_its_second_try(tmp_path: Path, url: str):
    """Its first attempt number is too low, so nothing is trained after the first fetch."""
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 800)
    first.upload(shared, first.begin_epoch(shared, 0))
    second.fetch(None, None)
    second.begin_epoch(shared, 1)
    newest = made(tmp_path / "b", 828, 2)
    second.upload(newest, 2)

    assert host(url, tmp_path / "a").fetch(shared, None).fetched == newest
    found = host(url, tmp_path / "a").fetch(newest, None)

    assert (found.left_behind, found.fetched) == ((), None)


def test_what_is_written_after_a_fetch_counts_before_an_epoch_is_begun(tmp_path: Path, url: str):
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 800)
    first.upload(shared, first.begin_epoch(shared, 0))
    second.fetch(None, None)
    second.begin_epoch(shared, 1)
    second.upload(made(tmp_path / "b", 828, 2), 2)
    first.fetch(shared, None)
    newer = made(tmp_path / "a", 850, 3)

    assert host(url, tmp_path / "a").fetch(newer, None).left_behind == ()
    third = host(url, tmp_path / "c")
    third.fetch(None, None)
    third.begin_epoch(CheckpointName(828, 2), 2)
    assert host(url, tmp_path / "a").fetch(newer, None).left_behind == (newer,)


def test_host_that_takes_over_goes_on_from_what_was_uploaded_since_it_fetched(tmp_path: Path, url: str):
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 100)
    first.upload(shared, epoch := first.begin_epoch(shared, 0))
    found = second.fetch(None, None)
    later = made(tmp_path / "a", 200)
    first.upload(later, epoch)

    assert second.take_over(shared, found.epoch, found.seen) == (2, later)
    assert host(url, tmp_path / "b").fetch(shared, None).fetched == later


def test_upload_between_the_look_of_the_newcomer_and_its_epoch_is_not_left_behind(tmp_path: Path, url: str):
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 100)
    first.upload(shared, epoch := first.begin_epoch(shared, 0))
    found = second.fetch(None, None)
    later = made(tmp_path / "a", 200)

    class Slow(FailingStore):
        def create(self, key: str, content: bytes) -> bool:
            if key == "epoch/0002":
                first.upload(later, epoch)
            return super().create(key, content)

    assert MirroredRun(Slow(url, -1, after=False), second.folder, 5).take_over(shared, found.epoch, found.seen) == (
        3,
        later,
    )
    assert host(url, tmp_path / "c").fetch(None, None).fetched == later


def test_going_back_on_purpose_is_no_reason_to_begin_again(tmp_path: Path, url: str):
    run = host(url, tmp_path / "a")
    older, newer = made(tmp_path / "a", 100), made(tmp_path / "a", 200)
    epoch = run.begin_epoch(older, 0)
    run.upload(older, epoch)
    run.upload(newer, epoch)

    assert run.take_over(older, epoch, newer) == (2, None)
    assert host(url, tmp_path / "b").fetch(None, None).fetched == older


def test_retention_keeps_the_newest_and_leaves_no_data_without_manifest(tmp_path: Path, url: str):
    run = host(url, tmp_path / "a", keep=2)
    names = [made(tmp_path / "a", step) for step in (100, 200, 300, 400)]
    epoch = run.begin_epoch(None, 0)
    for name in names:
        run.upload(name, epoch)

    left = sorted(path.name for path in (tmp_path / "store" / "e0001").iterdir() if any(path.iterdir()))
    assert [parse_name(each) for each in left] == names[-2:]


def test_beside_what_dead_workers_left_in_memory_one_stays_that_a_live_one_saved(tmp_path: Path, url: str):
    """Nobody has looked for NaN in the others: the host that goes on may have to go back behind them."""
    run = host(url, tmp_path / "a", keep=2)
    saved = [made(tmp_path / "a", step) for step in (50, 100)]
    left = [made(tmp_path / "a", 110 + attempt, attempt, layout.FROM_MEMORY) for attempt in (2, 3, 4)]
    epoch = run.begin_epoch(None, 0)
    for name in (*saved, *left):
        run.upload(name, epoch)

    other = host(url, tmp_path / "b")
    assert [path.name for path in sorted((tmp_path / "store" / "e0001").iterdir()) if any(path.iterdir())] == [
        str(name) for name in (saved[-1], *left[-2:])
    ]
    assert other.fetch(None, below=110).fetched == saved[-1]


def begun_long_ago(folder: Path, epoch: int, ago: timedelta) -> None:
    at = (datetime.now(UTC) - ago).timestamp()
    os.utime(folder / "epoch" / f"{epoch:04d}", (at, at))


@pytest.mark.parametrize("ago", [GIVEN_UP_AGE + timedelta(hours=1), GIVEN_UP_AGE - timedelta(hours=1)])
def test_what_was_given_up_long_ago_is_deleted_once_the_new_line_has_two_of_its_own(
    tmp_path: Path, url: str, ago: timedelta
):
    folder, store = tmp_path / "here", tmp_path / "store"
    here = host(url, folder)
    first = here.begin_epoch(None, 0)
    names = [made(folder, step) for step in (100, 200, 300)]
    for name in names:
        here.upload(name, first)
    second = here.begin_epoch(names[0], first)  # training has diverged
    begun_long_ago(store, second, ago)

    here.upload(made(folder, 110, 2), second)
    there = {path.name for path in (store / f"e{first:04d}").iterdir()}
    assert there == set(map(str, names)), "one of its own may prove bad"
    here.upload(made(folder, 120, 2), second)

    left = {path.parent.name for path in (store / f"e{first:04d}").rglob("*") if path.is_file()}
    assert left == ({str(names[0])} if ago > GIVEN_UP_AGE else set(map(str, names)))
    assert host(url, tmp_path / "new").fetch(None, None).fetched == CheckpointName(120, 2)


def test_a_host_whose_clock_is_ahead_of_the_stores_takes_nothing_for_old(tmp_path: Path, url: str):
    """Neither what another node is just uploading, nor what was given up a moment ago."""
    folder, store, ahead = tmp_path / "here", tmp_path / "store", 10 * GIVEN_UP_AGE
    stored = Lying(url, lambda listed: [(key, size, at - ahead) for key, size, at in listed])
    here = MirroredRun(stored, folder, 5)
    first = here.begin_epoch(None, 0)
    names = [made(folder, step) for step in (100, 200)]
    for name in names:
        here.upload(name, first)
    second = here.begin_epoch(names[0], first)  # training has diverged
    uploading = store / f"e{second:04d}" / "step-0000000130.a2" / FILES[0]
    uploading.parent.mkdir(parents=True)
    uploading.write_text("of another node")

    for step in (110, 120):
        here.upload(made(folder, step, 2), second)

    assert uploading.exists()
    assert {path.parent.name for path in (store / f"e{first:04d}").rglob("*") if path.is_file()} == set(map(str, names))


def test_what_was_given_up_for_something_older_than_all_is_deleted_too(tmp_path: Path, url: str):
    folder, store = tmp_path / "here", tmp_path / "store"
    here = host(url, folder)
    first = here.begin_epoch(None, 0)
    for step in (200, 300):
        here.upload(made(folder, step), first)
    second = here.begin_epoch(made(folder, 100), first)  # training has diverged; the store never had that one
    begun_long_ago(store, second, 2 * GIVEN_UP_AGE)

    for step in (110, 120):
        here.upload(made(folder, step, 2), second)

    assert not [path for path in (store / f"e{first:04d}").rglob("*") if path.is_file()]
    assert host(url, tmp_path / "new").fetch(None, None).fetched == CheckpointName(120, 2)


def test_what_was_given_up_is_no_parent_though_the_store_was_away_until_later_ones_were_saved(tmp_path: Path, url: str):
    """Training diverged at 150, went back to 100, and has passed 200 by the time that the store answers."""
    folder = tmp_path / "here"
    here = host(url, folder)
    first = here.begin_epoch(None, 0)
    for step in (100, 200, 210):
        here.upload(made(folder, step), first)
    record_given_up(folder, 150, 1)

    second = here.begin_epoch(made(folder, 250, 2), first)

    parent = here.epochs()[second].parent
    assert parent == RemoteCheckpoint(first, CheckpointName(100, 1))
    assert host(url, tmp_path / "new").fetch(None, None).fetched == CheckpointName(100, 1)


def test_what_was_given_up_is_no_parent_though_the_disk_was_replaced_before_the_rollback(tmp_path: Path, url: str):
    here = host(url, tmp_path / "here")
    first = here.begin_epoch(None, 0)
    for step, attempt in ((100, 1), (200, 2)):
        here.upload(made(tmp_path / "here", step, attempt), first)
    there = host(url, tmp_path / "replaced")
    there.fetch(None, 150)
    record_given_up(tmp_path / "replaced", 150, 2)

    second = there.begin_epoch(made(tmp_path / "replaced", 250, 3), first)

    assert there.epochs()[second].parent == RemoteCheckpoint(first, CheckpointName(100, 1))


def test_what_an_operator_began_anew_without_stays_in_the_store(tmp_path: Path, url: str):
    folder, store = tmp_path / "here", tmp_path / "store"
    here = host(url, folder)
    first = here.begin_epoch(None, 0)
    here.upload(name := made(folder, 100), first)
    second = here.begin_epoch(None, first)
    begun_long_ago(store, second, 10 * GIVEN_UP_AGE)
    for step in (10, 20, 30):
        here.upload(made(folder, step, 2), second)

    assert (store / f"e{first:04d}" / str(name) / layout.MANIFEST).exists()


def test_folder_that_was_deleted_says_again_which_epoch_its_host_holds(tmp_path: Path, url: str):
    folder = tmp_path / "a"
    run, first = host(url, folder), made(folder, 100)
    epoch = run.begin_epoch(first, 0)
    run.upload(first, epoch)

    shutil.rmtree(folder)
    assert run.fetch(None, None).fetched == first
    run.keep_held(epoch)
    assert host(url, folder).begin_epoch(first, 0) == 2

    shutil.rmtree(folder)
    run.upload(made(folder, 200), 2)
    assert host(url, folder).begin_epoch(first, 0) == 3


def run_with_one_at(tmp_path: Path, url: str, step: int) -> CheckpointName:
    """A run in the store, which another host has trained to a step."""
    other = host(url, tmp_path / "other")
    name = made(other.folder, step)
    other.upload(name, other.begin_epoch(name, 0))
    return name


def test_what_may_be_of_another_training_is_not_fetched_until_it_is_chosen(tmp_path: Path, url: str):
    there, here = run_with_one_at(tmp_path, url, 500), host(url, tmp_path / "here")
    own = made(here.folder, 100)

    with pytest.raises(OtherRun, match=r"of step 500 .* saved before there was this mirror"):
        here.fetch(own, None)
    assert here.fetch(None, None, only_look=True).standing is None, "the account of progress does not count it"
    assert local_checkpoints(here.folder) == [own]
    assert here.fetch(None, 501, is_chosen=True).fetched == there
    assert here.fetch(there, None).left_behind == ()


def test_what_may_be_of_another_training_is_not_taken_over_by_a_host_that_could_not_look(tmp_path: Path, url: str):
    run_with_one_at(tmp_path, url, 500)
    here = host(url, tmp_path / "here")

    with pytest.raises(OtherRun):
        here.take_over(made(here.folder, 100), 0, None)

    assert max(here.epochs()) == 1


def test_operator_who_goes_on_from_what_is_here_takes_the_run_over(tmp_path: Path, url: str):
    run_with_one_at(tmp_path, url, 500)
    here = host(url, tmp_path / "here")
    own = made(here.folder, 100)
    record_given_up(here.folder, 101, mirror=url)

    assert here.fetch(own, None).fetched is None
    assert here.take_over(own, 1, None) == (2, None)


@pytest.mark.parametrize("step", [50, 100])
def test_a_run_that_may_be_of_another_training_is_not_taken_over_where_its_steps_are_lower(
    tmp_path: Path, url: str, step: int
):
    run_with_one_at(tmp_path, url, step)
    here = host(url, tmp_path / "here")
    own = made(here.folder, 100, 2)

    with pytest.raises(OtherRun, match=rf"is of step {step} "):
        here.fetch(own, None)
    with pytest.raises(OtherRun):
        here.take_over(own, 1, None)

    assert max(here.epochs()) == 1


def test_list_that_leaves_another_run_out_does_not_give_it_away(tmp_path: Path, url: str):
    run_with_one_at(tmp_path, url, 50)
    (tmp_path / "store" / "epoch" / "0001.committed").touch()
    (tmp_path / "store" / "e0001").rename(tmp_path / "hidden")
    here = host(url, tmp_path / "here")
    own = made(here.folder, 100)

    with pytest.raises(StoreError, match="lists no checkpoint of this run"):
        here.take_over(own, 1, None)


def test_of_another_training_nothing_is_gone_on_from_or_deleted_once_an_operator_has_chosen_what_is_here(
    tmp_path: Path, url: str
):
    there, store = run_with_one_at(tmp_path, url, 50), tmp_path / "store"
    here = host(url, tmp_path / "here", keep=2)
    own = made(here.folder, 100)
    record_given_up(here.folder, 101, mirror=url)

    epoch, _ = here.take_over(own, 1, None)
    begun_long_ago(store, epoch, 10 * GIVEN_UP_AGE)
    for name in (own, *(made(here.folder, step) for step in (200, 300, 400))):
        here.upload(name, epoch)

    assert here.epochs()[epoch].parent is None
    assert (store / f"e{epoch - 1:04d}" / str(there) / layout.MANIFEST).exists()
    assert host(url, tmp_path / "new").fetch(None, None).fetched == CheckpointName(400, 1)


@pytest.mark.parametrize("step", [50, 500])
def test_folder_of_a_run_in_one_store_may_be_of_another_training_than_a_run_in_another(tmp_path: Path, step: int):
    first, second = (f"file://{tmp_path}/{name}" for name in ("first", "store"))
    here = host(first, tmp_path / "here")
    own = made(here.folder, 100, 2)
    here.upload(own, here.take_over(own, 0, None)[0])
    there = run_with_one_at(tmp_path, second, step)

    moved = host(second, here.folder)
    with pytest.raises(OtherRun):
        moved.fetch(own, None)
    with pytest.raises(OtherRun):
        moved.take_over(own, 1, None)
    look = moved.fetch(own, None, only_look=True)
    assert (look.standing, look.is_held, look.left_behind) == (None, False, ())
    assert host(first, here.folder).fetch(own, None).is_held, "what was not chosen has changed nothing"

    record_given_up(here.folder, 101, mirror=second)
    epoch, _ = moved.take_over(own, 1, None)
    assert moved.epochs()[epoch].parent is None
    assert there != own


def test_folder_of_a_run_in_one_store_goes_on_in_an_empty_one_and_in_a_copy(tmp_path: Path):
    first, empty, copy = (f"file://{tmp_path}/{name}" for name in ("first", "empty", "copy"))
    here = host(first, tmp_path / "here")
    own = made(here.folder, 100)
    here.upload(own, here.take_over(own, 0, None)[0])
    shutil.copytree(tmp_path / "first", tmp_path / "copy")

    for url in (empty, copy):
        moved = host(url, here.folder)
        result = moved.fetch(own, None)
        assert (result.fetched, result.left_behind) == (None, ())
        epoch, newer = moved.take_over(own, result.epoch, result.seen)
        moved.upload(own, epoch)
        assert newer is None
        assert host(url, tmp_path / f"new {epoch}").fetch(None, None).fetched == own


def test_order_that_is_withdrawn_leaves_a_folder_of_no_run_as_it_was(tmp_path: Path, url: str):
    run_with_one_at(tmp_path, url, 500)
    here = host(url, tmp_path / "here")
    own = made(here.folder, 100)

    record_given_up(here.folder, 101, mirror=url)()

    with pytest.raises(OtherRun):
        here.fetch(own, None)


def test_copy_of_a_run_is_of_that_run(tmp_path: Path, url: str):
    first, copy = host(url, tmp_path / "first"), host(url, tmp_path / "copy")
    shared = made(first.folder, 100)
    epoch = first.begin_epoch(shared, 0)
    for name in (shared, made(first.folder, 500)):
        first.upload(name, epoch)
    made(copy.folder, 100)  # by hand, without what the folder says of epochs

    assert str(copy.fetch(shared, None).fetched) == "step-0000000500.a1"


def test_what_was_saved_after_a_look_at_an_empty_store_is_of_the_run_there(tmp_path: Path, url: str):
    here = host(url, tmp_path / "here")
    here.fetch(None, None)
    own = made(here.folder, 100)
    there = run_with_one_at(tmp_path, url, 500)

    assert here.fetch(own, None).fetched == there
