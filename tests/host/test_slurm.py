"""Folders that earlier jobs left on a node."""

import os
from pathlib import Path

import pytest

from supervisor.host import slurm
from supervisor.host.service.single_instance import StateFolder

pytestmark = pytest.mark.integration


SCONTROL = """#!/bin/sh
for job; do :; done
state=$(cat {states}/$job 2> /dev/null) || {{ echo "slurm_load_jobs error: Invalid job id specified"; exit 1; }}
echo "JobId=$job JobState=$state Reason=None"
"""
SILENT = """#!/bin/sh
echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2
exit 1
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `scontrol` that knows job 3 as running, 4 as requeued, 5 as ended, and no other."""
    states, command = tmp_path / "states", tmp_path / "bin" / "scontrol"
    for folder in (states, command.parent):
        folder.mkdir()
    for job, state in {"3": "RUNNING", "4": "PENDING", "5": "CANCELLED"}.items():
        (states / job).write_text(state)
    command.write_text(SCONTROL.format(states=states))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    return command


@pytest.fixture
def folders(tmp_path: Path, scontrol: Path) -> Path:
    """A node's disk."""
    disk = tmp_path / "disk"
    for job in (1, 2, 3, 4, 5):
        (disk / f"stepkeeper-{os.geteuid()}-{job}").mkdir(parents=True)
    return disk


def left(folder: Path) -> set[str]:
    return {path.name.rpartition("-")[2] for path in folder.iterdir()}


def test_only_folders_of_ended_jobs_are_removed(folders: Path):
    own = folders / f"stepkeeper-{os.geteuid()}-1"

    slurm.sweep_folders(own, older_than_s=-1.0)

    assert left(folders) == {"1", "3", "4"}


def test_folder_of_a_live_daemon_stays_whatever_slurm_says(folders: Path):
    held = StateFolder(folders / f"stepkeeper-{os.geteuid()}-2")
    held.lock()

    slurm.sweep_folders(folders / f"stepkeeper-{os.geteuid()}-1", older_than_s=-1.0)

    assert "2" in left(folders)


def test_what_is_no_folder_of_ours_stays(folders: Path):
    (folders / "stepkeeper-70000-8").mkdir()
    (folders / f"stepkeeper-{os.geteuid()}-9").symlink_to("/etc")
    (folders / f"stepkeeper-{os.geteuid()}-x").mkdir()
    before = left(folders)

    slurm.sweep_folders(folders / f"stepkeeper-{os.geteuid()}-1", older_than_s=-1.0)

    assert left(folders) == before - {"2", "5"}


def test_young_folder_stays_and_a_controller_that_does_not_answer_removes_nothing(folders: Path, scontrol: Path):
    own = folders / f"stepkeeper-{os.geteuid()}-1"
    assert slurm.sweep_folders(own) == []

    scontrol.write_text(SILENT)
    assert slurm.sweep_folders(own, older_than_s=-1.0) == []
    assert left(folders) == {"1", "2", "3", "4", "5"}
