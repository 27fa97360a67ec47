"""Folders that earlier jobs left on a node."""

import os
import time
from pathlib import Path

import pytest

from supervisor.host import slurm
from supervisor.host.service.single_instance import StateFolder


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's disk, and a `scontrol` that knows job 3 as running, 4 as requeued, 5 as ended, and no other."""
    answers = {"3": "JobState=RUNNING", "4": "JobState=PENDING", "5": "JobState=CANCELLED"}

    def ask(what: str, *command: str) -> str:
        try:
            return f"JobId={command[-1]} {answers[command[-1]]} Reason=None"
        except KeyError:
            raise slurm.SlurmError(f"cannot {what}: slurm_load_jobs error: Invalid job id specified") from None

    monkeypatch.setattr(slurm, "_ask", ask)
    monkeypatch.setattr(slurm, "SWEPT_AFTER_S", -1.0)
    for job in (1, 2, 3, 4, 5):
        (tmp_path / f"stepkeeper-{os.geteuid()}-{job}").mkdir()
    return tmp_path


def left(folder: Path) -> set[str]:
    return {each.name.rpartition("-")[2] for each in folder.iterdir()}


def test_only_folders_of_ended_jobs_are_removed(folders: Path):
    own = folders / f"stepkeeper-{os.geteuid()}-1"

    slurm.sweep_folders(own)

    assert left(folders) == {"1", "3", "4"}


def test_folder_of_a_live_daemon_stays_whatever_slurm_says(folders: Path):
    held = StateFolder(folders / f"stepkeeper-{os.geteuid()}-2")
    held.lock()

    slurm.sweep_folders(folders / f"stepkeeper-{os.geteuid()}-1")

    assert "2" in left(folders)


def test_what_is_no_folder_of_ours_stays(folders: Path, monkeypatch: pytest.MonkeyPatch):
    (folders / "stepkeeper-70000-8").mkdir()
    (folders / f"stepkeeper-{os.geteuid()}-9").symlink_to("/etc")
    (folders / f"stepkeeper-{os.geteuid()}-x").mkdir()
    before = left(folders)

    slurm.sweep_folders(folders / f"stepkeeper-{os.geteuid()}-1")

    assert left(folders) == before - {"2", "5"}


def test_young_folder_stays_and_a_controller_that_does_not_answer_removes_nothing(
    folders: Path, monkeypatch: pytest.MonkeyPatch
):
    own = folders / f"stepkeeper-{os.geteuid()}-1"
    monkeypatch.setattr(slurm, "SWEPT_AFTER_S", 3600.0)
    assert slurm.sweep_folders(own) == []

    def no_answer(what: str, *command: str) -> str:
        raise slurm.SlurmError(f"cannot {what}: Unable to contact slurm controller")

    monkeypatch.setattr(slurm, "SWEPT_AFTER_S", -time.time())
    monkeypatch.setattr(slurm, "_ask", no_answer)
    assert slurm.sweep_folders(own) == []
