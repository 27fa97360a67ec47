"""What lies in a store is proven to the last byte, whichever part of it the URL leads to."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.ctl.main import main
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.checkpoints.verification import VerifiedCheckpoint, verify_all
from supervisor.protocol.mirror.store import Store
from supervisor.protocol.mirror.verification import verify_url
from tests.host.mirror.test_run import FILES, host, made

Verdicts = dict[str, tuple[bool, bool]]


def verdicts(checkpoints: list[VerifiedCheckpoint]) -> Verdicts:
    return {checkpoint.name: (checkpoint.valid, checkpoint.counts) for checkpoint in checkpoints}


@pytest.fixture
def run(tmp_path: Path) -> str:
    """The URL of a run of two hosts; the first one wrote a checkpoint after the second had taken over."""
    url = f"file://{tmp_path}/store/team/j"
    first, second = host(url, tmp_path / "a"), host(url, tmp_path / "b")
    shared = made(tmp_path / "a", 100)
    first.upload(shared, first.begin_epoch(shared, 0))
    stray, place = made(tmp_path / "a", 900), tmp_path / "store/team/j/e0001"
    second.upload(made(tmp_path / "b", 200, 2), second.begin_epoch(shared, 1))
    (tmp_path / "a" / str(stray)).rename(place / str(stray))
    return url


def test_those_that_another_host_left_behind_do_not_count(run: str):
    assert list(verdicts(verify_url(run)).items()) == [
        ("e0001/step-0000000900.a1", (True, False)),
        ("e0002/step-0000000200.a2", (True, True)),
        ("e0001/step-0000000100.a1", (True, True)),
    ]


@pytest.mark.parametrize(
    ("cut", "names"),
    [
        ("/team/j", ["team/j/e0001/step-0000000900.a1", "team/j/e0002/step-0000000200.a2"]),
        ("", ["e0001/step-0000000900.a1", "e0002/step-0000000200.a2"]),
    ],
)
def test_the_url_may_be_a_prefix_of_several_runs(run: str, cut: str, names: list[str]):
    assert [checkpoint.name for checkpoint in verify_url(run.removesuffix(cut))][:2] == names


def test_the_url_may_be_one_checkpoint(run: str):
    assert verdicts(verify_url(f"{run}/e0002/step-0000000200.a2")) == {"step-0000000200.a2": (True, True)}


def _flip(place: Path) -> None:
    content = (place / FILES[0]).read_bytes()
    (place / FILES[0]).write_bytes(content[:7] + bytes([content[7] ^ 1]) + content[8:])


def _grow(place: Path) -> None:
    with (place / FILES[0]).open("ab") as file:
        file.write(b"x")


def _move(place: Path) -> None:
    place.rename(place.with_name("step-0000000201.a2"))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_flip, f"{FILES[0]} is not what its manifest says"),
        (_grow, f"{FILES[0]} has more than the"),
        (lambda place: (place / FILES[1]).unlink(), "ckpt.index is missing"),
        (lambda place: (place / layout.MANIFEST).write_bytes(b"{}"), "MANIFEST.json "),
        (_move, "MANIFEST.json says step-0000000200.a2, its place step-0000000201.a2"),
    ],
)
def test_damage_is_found_and_the_exit_status_says_it(
    run: str, tmp_path: Path, damage: Callable[[Path], object], reason: str, capsys: pytest.CaptureFixture[str]
):
    command = ["-s", "unix:///nowhere/at.all", "checkpoints", "--verify", run]
    assert main(command) == 0
    assert "does not count: another host" in capsys.readouterr().out

    damage(tmp_path / "store/team/j/e0002/step-0000000200.a2")

    assert main(command) == 1
    assert f"damaged: {reason}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///no/such/folder/here", "ERROR (cannot "),
        ("ftp://somewhere/else", "ERROR (the URL is 'ftp://somewhere/else'; write s3://BUCKET/PREFIX"),
    ],
)
def test_what_can_not_be_verified_exits_with_1(url: str, reason: str, capsys: pytest.CaptureFixture[str]):
    assert main(["-s", "unix:///nowhere/at.all", "checkpoints", "--verify", url]) == 1
    assert reason in capsys.readouterr().out


def test_an_empty_store_proves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["-s", "unix:///nowhere/at.all", "checkpoints", "--verify", f"file://{tmp_path}"]) == 1
    assert "no checkpoints there" in capsys.readouterr().out


def test_those_that_retention_deletes_meanwhile_are_not_damaged(run: str, monkeypatch: pytest.MonkeyPatch):
    """As on a live run: while the newest is read, an older one goes, its manifest first, and a newer one comes."""
    folder, download = Path(run.removeprefix("file://")), Store.download
    old, newer = folder / "e0001" / "step-0000000100.a1", folder / "e0002" / "step-0000000300.a2"

    def downloaded(self: Store, key: str) -> Iterator[memoryview]:
        if old.exists():
            shutil.rmtree(old)
            name = made(folder.parent / "new", 300, 2)
            (folder.parent / "new" / str(name)).rename(newer)
        yield from download(self, key)

    monkeypatch.setattr(Store, "download", downloaded)

    assert verdicts(verify_url(run)) == {
        "e0001/step-0000000900.a1": (True, False),
        "e0002/step-0000000200.a2": (True, True),
        "e0002/step-0000000300.a2": (True, True),
    }


def test_those_that_retention_deletes_from_a_folder_meanwhile_are_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old, newest = made(tmp_path, 100), made(tmp_path, 200)
    verify = manifest.verify_checkpoint

    def verified(folder: Path) -> manifest.Manifest:
        if folder.name == str(newest):
            shutil.rmtree(tmp_path / str(old))
            made(tmp_path, 300)
        return verify(folder)

    monkeypatch.setattr(manifest, "verify_checkpoint", verified)

    assert verdicts(verify_all(tmp_path)) == {
        "step-0000000300.a1": (True, True),
        "step-0000000200.a1": (True, True),
    }
