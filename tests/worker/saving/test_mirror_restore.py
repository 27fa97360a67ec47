"""A worker without a daemon begins from a mirror, and never at step 0 where it was told of one."""

from pathlib import Path

import pytest

from supervisor.protocol.checkpoints import selection
from supervisor.protocol.checkpoints.quarantine import list_quarantined
from supervisor.protocol.damage import OlderBecause
from tests.host.mirror.test_run import host
from tests.worker.saving.test_lost_directory import train

pytestmark = pytest.mark.integration


def uploaded(folder: Path, url: str, steps: int, home: Path) -> str:
    """Trains on another host, whose daemon has uploaded the last checkpoint; its name."""
    assert train(folder, steps, home).returncode == 0
    run, name = host(url, folder), max(selection.committed_checkpoints(folder))
    run.upload(name, run.begin_epoch(name, 0))
    return str(name)


@pytest.mark.slow
def test_an_empty_folder_gets_the_newest_checkpoint_and_the_attempt_after_it(tmp_path: Path):
    url, new = f"file://{tmp_path}/store/j", tmp_path / "new"
    uploaded(tmp_path / "old", url, 3, tmp_path)
    uploaded(tmp_path / "old", url, 5, tmp_path)  # by attempt 2

    ended = train(new, 7, tmp_path, STEPKEEPER_MIRROR=url)

    assert "begins at 5" in ended.stdout, ended.stderr
    assert f"fetched step-0000000005.a2 from {url}" in ended.stderr
    assert str(max(selection.committed_checkpoints(new))) == "step-0000000007.a3"
    again = train(new, 8, tmp_path, STEPKEEPER_MIRROR=url)
    assert "begins at 7" in again.stdout, "what is here is newer"


@pytest.mark.slow
def test_a_damaged_one_here_is_replaced_by_the_one_in_the_store(tmp_path: Path):
    url, run = f"file://{tmp_path}/store/j", tmp_path / "run"
    name = uploaded(run, url, 3, tmp_path)
    (run / name / "count").write_text("2")

    ended = train(run, 4, tmp_path, STEPKEEPER_MIRROR=url)

    assert "begins at 3" in ended.stdout, ended.stderr


@pytest.mark.slow
def test_what_another_host_left_behind_is_set_aside(tmp_path: Path):
    url, run = f"file://{tmp_path}/store/j", tmp_path / "run"
    uploaded(run, url, 3, tmp_path)
    assert "begins at 3" in train(run, 9, tmp_path).stdout
    other = host(url, tmp_path / "other")
    assert other.fetch(None, None).fetched is not None
    other.begin_epoch(max(selection.committed_checkpoints(tmp_path / "other")), 1)

    ended = train(run, 5, tmp_path, STEPKEEPER_MIRROR=url)

    assert "begins at 3" in ended.stdout, ended.stderr
    assert "set step-0000000009.a2 aside: another host has gone on" in ended.stderr
    assert [aside.because for aside in list_quarantined(run)] == [OlderBecause.LEFT_BEHIND]


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        ("nothing", "no checkpoint there counts; set STEPKEEPER_MIRROR to one run"),
        ("damaged", "no checkpoint is whole (refused e0001/step-0000000003.a1"),
        ("unreachable", "the store may have one; start again when it answers"),
        ("no URL", "STEPKEEPER_MIRROR is 'somewhere'; write s3://BUCKET/PREFIX"),
    ],
)
def test_without_a_checkpoint_it_does_not_begin(tmp_path: Path, store: str, reason: str):
    url = f"file://{tmp_path}/store/j"
    if store == "damaged":
        name = uploaded(tmp_path / "old", url, 3, tmp_path)
        (tmp_path / "store/j/e0001" / name / "count").write_text("2")
    elif store == "nothing":
        (tmp_path / "store/j").mkdir(parents=True)
    elif store == "unreachable":
        (tmp_path / "store").write_text("a file where the folder should be")

    ended = train(tmp_path / "new", 5, tmp_path, STEPKEEPER_MIRROR="somewhere" if store == "no URL" else url)

    assert (ended.returncode, "begins at" in ended.stdout) == (73, False)
    assert reason in ended.stderr


def test_a_store_that_can_not_be_reached_does_not_stop_what_has_a_checkpoint(tmp_path: Path):
    assert train(tmp_path / "run", 3, tmp_path).returncode == 0
    (tmp_path / "store").write_text("a file where the folder should be")

    ended = train(tmp_path / "run", 4, tmp_path, STEPKEEPER_MIRROR=f"file://{tmp_path}/store/j")

    assert "begins at 3" in ended.stdout, ended.stderr
    assert "going on from the newest checkpoint in" in ended.stderr


@pytest.mark.slow
def test_a_later_step_of_initial_checkpoint_is_not_taken_for_progress_of_this_run(tmp_path: Path):
    url, base = f"file://{tmp_path}/store/j", tmp_path / "base"
    uploaded(tmp_path / "old", url, 5, tmp_path)
    assert train(base, 9, tmp_path).returncode == 0

    ended = train(tmp_path / "new", 7, tmp_path, STEPKEEPER_MIRROR=url, STEPKEEPER_INITIAL_CHECKPOINT=str(base))

    assert "begins at 5" in ended.stdout, ended.stderr


@pytest.mark.slow
def test_newer_checkpoints_of_what_may_be_another_training_are_refused(tmp_path: Path):
    url, run = f"file://{tmp_path}/store/j", tmp_path / "run"
    uploaded(tmp_path / "other", url, 5, tmp_path)
    assert train(run, 3, tmp_path).returncode == 0

    ended = train(run, 7, tmp_path, STEPKEEPER_MIRROR=url)

    assert ended.returncode == 73, ended.stderr
    assert "is of step 5 (step-0000000005.a1), and nothing says that it is of the same training" in ended.stderr
    assert "unset STEPKEEPER_MIRROR to go on from step-0000000003.a1, or move what is in" in ended.stderr
    assert "begins at 3" in train(run, 4, tmp_path).stdout
