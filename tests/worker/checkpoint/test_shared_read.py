"""Workers read a checkpoint together: each its share of the bytes, and all have the whole, proven, or none has."""

import errno
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints.manifest import Manifest, record_files
from worker.checkpoint.shared_read import ALWAYS, LEAST_PIECE_BYTES, CannotShare, SharingRule, read_together
from worker.data.collectives import Gang

pytestmark = pytest.mark.tensorflow
NAME = "step-0000000007.a1"
PIECE = LEAST_PIECE_BYTES
PATIENCE_S = 30.0


class Sums:
    """The sum over all workers, which are threads here."""

    def __init__(self, workers: int) -> None:
        self._barrier = threading.Barrier(workers, timeout=PATIENCE_S)
        self._parts: list[Any] = []

    def __call__(self, numbers: Any) -> Any:
        if self._barrier.wait() == 0:
            self._parts = []
        self._barrier.wait()
        self._parts.append(numbers.numpy())
        self._barrier.wait()
        return np.sum(self._parts, axis=0)


def save(place: Path, contents: Mapping[str, bytes]) -> Path:
    folder = place / NAME
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    made = Manifest("job", 1, 7, 0.0, record_files(folder, tuple(contents)))
    (folder / layout.MANIFEST).write_bytes(made.to_bytes())
    return folder


def read(folders: list[Path], rule: SharingRule = ALWAYS) -> list[dict[str, bytes] | str | None]:
    """What each worker gets, which sees its own folder: files, why it can't be, or nothing."""
    sums = Sums(len(folders))

    def work(rank: int) -> dict[str, bytes] | str | None:
        try:
            with read_together(folders[rank], Gang(rank, len(folders), sums), rule, round_bytes=0) as copy:
                if copy is None:
                    return None
                return {path.name: path.read_bytes() for path in copy.iterdir()}
        except CannotShare as error:
            return str(error)

    with ThreadPoolExecutor(len(folders)) as threads:
        return list(threads.map(work, range(len(folders))))


def pieces(contents: Mapping[str, bytes]) -> Iterator[tuple[str, int]]:
    for name, content in contents.items():
        for offset in range(0, len(content), PIECE):
            yield name, offset


@contextmanager
def seen_by_each(place: Path, contents: Mapping[str, bytes], workers: int) -> Iterator[list[Path]]:
    """A folder for each worker, in which all is zeros but the pieces that it is to read."""
    folders = [save(place / str(rank), contents) for rank in range(workers)]
    for number, (name, offset) in enumerate(pieces(contents)):
        for rank, folder in enumerate(folders):
            if rank != number % workers:
                with (folder / name).open("r+b") as file:
                    file.seek(offset)
                    file.write(bytes(min(PIECE, len(contents[name]) - offset)))
    yield folders
    shutil.rmtree(place)


SIZES = st.one_of(st.integers(0, 3 * PIECE), st.sampled_from([0, 1, 7, 8, 9, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE]))


@settings(deadline=None, max_examples=20)  # of as many threads as workers, and half a megabyte
@given(sizes=st.lists(SIZES, min_size=1, max_size=5), workers=st.integers(2, 4), seed=st.integers(0, 99))
def test_each_byte_is_read_by_one_worker_and_all_have_the_whole(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], workers: int, seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    contents = {f"file-{number}": numbers.bytes(size) for number, size in enumerate(sizes)}
    with seen_by_each(tmp_path_factory.mktemp("each") / "seen", contents, workers) as folders:
        copies = read(folders)

    for copy in copies:
        assert isinstance(copy, dict)
        assert {name: copy[name] for name in contents} == contents
        assert {file.name for file in manifest.parse_manifest(copy[layout.MANIFEST]).files} == set(contents)


CONTENTS = {"ckpt.data": bytes(range(256)) * 1024, "ckpt.index": b"index"}


def flip(folder: Path) -> None:
    with (folder / "ckpt.data").open("r+b") as file:
        file.seek(2 * PIECE + 5)  # in the third piece: the chief's, of two workers
        file.write(b"?")


def cut(folder: Path) -> None:
    (folder / "ckpt.data").write_bytes(CONTENTS["ckpt.data"][:-1])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flip, "ckpt.data has hash"),
    "cut": (cut, "ckpt.data is 262143 bytes, its manifest says 262144"),
    "missing": (lambda folder: (folder / "ckpt.index").unlink(), "No such file or directory"),
    "no manifest": (lambda folder: (folder / layout.MANIFEST).unlink(), "No such file or directory"),
    "manifest of another": (
        lambda folder: (folder / layout.MANIFEST).write_bytes(
            Manifest("other", 1, 7, 0.0, record_files(folder, tuple(CONTENTS))).to_bytes()
        ),
        "it sees another manifest",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("workers", [2, 3])
def test_if_one_reads_it_wrongly_all_say_who_and_nobody_has_a_copy(tmp_path: Path, workers: int, damage: str) -> None:
    folders = [save(tmp_path / str(rank), CONTENTS) for rank in range(workers)]
    spoil, words = DAMAGES[damage]
    victim = 2 % workers if damage == "flipped" else workers - 1
    spoil(folders[victim])

    results = read(folders)

    assert all(isinstance(result, str) for result in results), results
    assert words in str(results[victim])
    if damage != "flipped":  # who read it wrongly, nobody can know from the hash of a whole file
        assert all(str(result).startswith(f"worker {victim}: ") for result in results)


def test_piece_that_can_not_be_read_ends_it_for_all(tmp_path: Path) -> None:
    target = tmp_path / "short"
    contents = {"ckpt.index": b"x" * len(str(target)), "ckpt.data": bytes(PIECE)}
    folders = [save(tmp_path / str(rank), contents) for rank in range(2)]
    target.write_bytes(b"x")
    (folders[0] / "ckpt.index").unlink()
    (folders[0] / "ckpt.index").symlink_to(target)  # a link is as long as the name of its target

    own, other = read(folders)

    assert own == f"worker 0: cannot read {NAME}: ckpt.index ends at 1"
    assert other == f"worker 0: it cannot read {NAME}"


def test_one_without_place_for_a_copy_has_all_read_it_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a host whose /tmp is full; else its worker alone ended, at every start."""
    folders = [save(tmp_path / str(rank), CONTENTS) for rank in range(2)]
    made = tempfile.mkdtemp
    first = iter([True])

    def mkdtemp(*args: Any, **more: Any) -> str:
        if next(first, False):
            raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
        return made(*args, **more)

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)

    results = read(folders)

    assert all("there is no place for a copy: " in str(result) for result in results), results


@pytest.mark.parametrize(
    ("rule", "shares"), [(SharingRule(1000, 1), True), (SharingRule(0, 2), False), (SharingRule(1 << 20, 1), False)]
)
def test_small_states_and_workers_of_few_hosts_do_not_share(tmp_path: Path, rule: SharingRule, shares: bool) -> None:
    folders = [save(tmp_path / str(rank), CONTENTS) for rank in range(2)]

    assert [result is not None for result in read(folders, rule)] == [shares] * 2
