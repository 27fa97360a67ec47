"""A job begins from what it is told to, or fails with the list; it never begins at step 0 in silence."""

import shutil
from pathlib import Path

import pytest

from tests.places import BUNDLES
from tests.system.harness import Daemon, job


@pytest.mark.parametrize("by_key", [True, False])
def test_job_whose_only_start_is_damaged_fails_with_the_list(tmp_path: Path, by_key: bool) -> None:
    folder = tmp_path / ("old" if by_key else "j")
    shutil.copytree(BUNDLES / "saver", folder)
    for data in folder.glob("*.data-*"):
        data.write_bytes(b"")
    with Daemon(tmp_path, job("j", tmp_path, f"initial_checkpoint = {folder}" if by_key else "")) as daemon:
        failed = daemon.until_state("j", "FAILED")

    assert "model.ckpt-100: model.ckpt-100.data-00000-of-00001 is 0 bytes" in failed["description"]
    assert "model.ckpt-90" in failed["description"]
    assert sorted(folder.glob("step-*")) == []


def test_job_begins_from_another_jobs_newest(tmp_path: Path) -> None:
    with Daemon(tmp_path, job("first", tmp_path, STEPS=30, EVERY=10)) as daemon:
        daemon.until_state("first", "SUCCEEDED")
        daemon.write(job("second", tmp_path, f"initial_checkpoint = {tmp_path}/first", STEPS=50, EVERY=10))
        daemon.call("update")
        daemon.until_state("second", "SUCCEEDED")
        (attempt,) = daemon.call("history", name="second", limit=10)["attempts"]

    assert (attempt["restored"], attempt["from_step"], attempt["to_step"]) == ("step-0000000030.a1", 30, 50)
    assert sorted(path.name for path in (tmp_path / "first").glob("step-*"))[-1] == "step-0000000030.a1"
