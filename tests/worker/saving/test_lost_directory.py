"""A worker without a daemon does not begin at step 0 where its checkpoints are only out of reach."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.protocol.checkpoints import selection
from supervisor.protocol.checkpoints.quarantine import move_to_quarantine
from tests.places import ROOT
from worker.saving import commit_record
from worker.saving.commit_record import CommitRecord

pytestmark = pytest.mark.integration

SCRIPT = """
import sys
from pathlib import Path
from worker.files import FilesRun

class Counting:
    versions = {"counting": "1"}
    topology = {}
    def write(self, folder):
        (folder / "count").write_text("1")
    def read(self, folder):
        pass

with FilesRun(Counting(), total_steps=int(sys.argv[2]), directory=Path(sys.argv[1])) as run:
    print("begins at", run.step)
    while run.step < int(sys.argv[2]):
        run.step_done(epoch=0, batch=run.step)
"""


def train(directory: Path, steps: int, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", SCRIPT, directory, str(steps)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)


def records(home: Path) -> list[Path]:
    return sorted((home / ".local" / "state" / "stepkeeper").glob("*.json"))


@pytest.mark.slow
def test_a_deleted_directory_is_not_begun_anew_until_the_record_is_deleted(tmp_path: Path) -> None:
    run, home = tmp_path / "run", tmp_path / "home"
    home.mkdir()
    assert "begins at 0" in train(run, 3, home).stdout
    assert "begins at 3" in train(run, 5, home).stdout
    (record,) = records(home)
    assert {path.name for path in tmp_path.iterdir()} == {"run", "home"}, "nothing is beside the directory"

    shutil.move(run, tmp_path / "away")
    refused = train(run, 7, home)
    assert (refused.returncode, run.exists()) == (73, False)
    assert "step 5 (step-0000000005.a2) was committed in" in refused.stderr
    assert f"to begin anew, delete {record}" in refused.stderr

    shutil.move(tmp_path / "away", run)
    assert "begins at 5" in train(run, 7, home).stdout
    shutil.rmtree(run)
    record.unlink()
    assert "begins at 0" in train(run, 7, home).stdout


@pytest.mark.slow
def test_without_the_newest_it_goes_on_from_an_older_one_and_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(run, 3, tmp_path)
    train(run, 5, tmp_path)
    newest = selection.committed_checkpoints(run)[0]
    shutil.rmtree(run / str(newest))

    again = train(run, 6, tmp_path)

    assert "begins at 3" in again.stdout
    assert "was committed in" in again.stderr
    assert "the newest one that is left is of step 3" in again.stderr


@pytest.mark.slow
def test_without_the_newest_that_somebody_else_has_set_aside_it_says_so(tmp_path: Path) -> None:
    """As another host's daemon, which has found it damaged."""
    run = tmp_path / "run"
    train(run, 3, tmp_path)
    train(run, 5, tmp_path)
    move_to_quarantine(run, selection.committed_checkpoints(run)[0], "state.json is not what its manifest says")

    again = train(run, 6, tmp_path)

    assert "begins at 3" in again.stdout
    assert "step 5 (step-0000000005.a2) was committed in" in again.stderr
    assert "is in quarantine now: state.json is not what its manifest says" in again.stderr
    assert "quarantine" not in train(run, 7, tmp_path).stderr


@pytest.mark.parametrize("home", ["", "/proc/nowhere"])
def test_without_a_home_that_can_be_written_nothing_is_remembered_and_nothing_fails(tmp_path: Path, home: str) -> None:
    first = train(tmp_path / "run", 2, Path(home), HOME=home)
    shutil.rmtree(tmp_path / "run")
    second = train(tmp_path / "run", 2, Path(home), HOME=home)

    assert (first.returncode, second.returncode) == (0, 0)
    assert "begins at 0" in second.stdout


@pytest.mark.parametrize("content", [b"", b"[]", b'{"name": 1, "step": 2, "mount": null}', b"[" * 10_000, b"\xff" * 99])
def test_a_damaged_record_is_none(tmp_path: Path, content: bytes) -> None:
    record = CommitRecord(tmp_path, tmp_path / "run")
    record.remember("step-0000000005.a1", 5)
    assert record.load() is not None
    record.path.write_bytes(content)

    assert record.load() is None


def test_the_records_that_were_written_first_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_record, "MAX_RECORDS", 3)
    made = [CommitRecord(tmp_path, tmp_path / str(number)) for number in range(6)]
    for number, each in enumerate(made):
        each.remember("step-0000000005.a1", 5)
        os.utime(each.path, (1e9 + number, 1e9 + number))

    assert [each.load() is not None for each in made] == [False, False, False, True, True, True]


@pytest.mark.parametrize("written_at", [0.0, 1e9])
def test_no_record_is_forgotten_for_its_age(tmp_path: Path, written_at: float) -> None:
    """It says that training is not to begin at step 0, also after a year, or if the clock was not set as it was
    written."""
    record = CommitRecord(tmp_path, tmp_path / "run")
    record.remember("step-0000000005.a1", 5)
    os.utime(record.path, (written_at, written_at))
    CommitRecord(tmp_path, tmp_path / "other").remember("step-0000000001.a1", 1)

    assert record.load() is not None
