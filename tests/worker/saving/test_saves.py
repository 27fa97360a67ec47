"""Saves: when, what is said about them, and what happens when they fail."""

import math
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol import layout
from supervisor.protocol.checkpoints import manifest, selection
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import (
    Committed,
    Done,
    Failed,
    Flush,
    Flushing,
    Go,
    Progress,
    Restored,
    SaveFailed,
    Then,
)
from tests import page_cache
from tests.waiting import wait_until
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker.checkpoint import tensorflow_writer
from worker.saving import scheduler
from worker.state import state_file

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
FILLER_BYTES = 230_000  # of a disk of 256 KiB: leaves less than the 80 kB of a checkpoint


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def under_daemon(daemon: DaemonEnd, begin: Begin, directory: Path) -> Callable[..., None]:
    """This process is attempt 1 of a daemon that said go."""

    def start(**settings: Any) -> None:
        begin(Launch(control=daemon.control(), checkpoint_dir=directory, **settings))
        daemon.send(Go(1, restore=None))

    return start


def run_of(strategy: Any, steps: int | None, **settings: Any) -> tuple[worker.Run, tf.train.Checkpoint]:
    tracked = training.build(strategy)
    return worker.Run(tracked, strategy=strategy, total_steps=steps, **settings), tracked


def names(directory: Path) -> list[str]:
    return [str(name) for name in reversed(selection.committed_checkpoints(directory))]


def test_saves_at_multiples_of_the_interval_and_at_the_end(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon(checkpoint_interval=Interval(steps=3))
    run, tracked = run_of(two_replicas, 7)
    with run:
        training.train(run, tracked, two_replicas)
    daemon.wait_for(Done)

    assert names(directory) == ["step-0000000003.a1", "step-0000000006.a1", "step-0000000007.a1"]
    assert [committed.step for committed in daemon.all_of(Committed)] == [3, 6, 7]
    assert all(manifest.verify_checkpoint(directory / name) for name in names(directory))


def test_done_is_said_after_the_last_commit_with_the_results(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any
) -> None:
    under_daemon()
    run, tracked = run_of(two_replicas, 2)
    with run:
        training.train(run, tracked, two_replicas)
        run.summary(accuracy=0.5)
    done = daemon.wait_for(Done)

    order = [type(message) for message in daemon.heard if isinstance(message, Committed | Done | Restored)]
    assert order == [Restored, Committed, Done]
    assert (done.step, done.metrics["accuracy"]) == (2, 0.5)


def test_last_checkpoint_is_there_before_the_evaluation_begins(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon()
    run, tracked = run_of(two_replicas, 2)
    with run:
        training.train(run, tracked, two_replicas)
        found = names(directory)

    assert found == ["step-0000000002.a1"]


def test_first_step_is_reported_at_once_with_its_metrics(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any
) -> None:
    under_daemon()
    run, tracked = run_of(two_replicas, 3)
    with run:
        training.train(run, tracked, two_replicas)
    first = daemon.wait_for(Progress)

    assert (first.step, first.total_steps, first.step_s) == (1, 3, None)
    assert first.metrics["loss"] > 0


def test_epochs_over_examples_say_how_many_steps_there_will_be(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any
) -> None:
    under_daemon()
    run, _ = run_of(two_replicas, None)
    data = worker.Examples(np.arange(10.0), batch_size=2)  # five steps in each epoch
    with run:
        for epoch in run.epochs(3):
            for _ in run.batches(data):
                run.step_done(loss=0.5)
                if (epoch, run.batch) == (1, 2):
                    break
    first = daemon.wait_for(Progress)

    assert (first.step, first.total_steps) == (1, 15)
    assert (run.step, run._expected_steps) == (12, 12)  # an epoch that ends early makes it less from the next one on


def test_flush_during_a_step_is_served_after_it_and_training_goes_on(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon()
    run, tracked = run_of(two_replicas, 5)
    step = training.step_of(tracked, two_replicas)
    with run:
        for images, labels in run.batches(training.data()):
            if run.step == 2:
                daemon.send(Flush(1, id=9, reason="operator", then=Then.GO_ON))
                daemon.wait_for(Flushing)
            run.step_done(loss=step(images, labels))
    committed = daemon.wait_for(Committed)

    assert daemon.wait_for(Flushing).step == 2
    assert (committed.step, committed.flushes) == (3, (9,))
    assert names(directory) == ["step-0000000003.a1", "step-0000000005.a1"]


def test_flush_then_stop_leaves_with_143_after_the_commit(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon()
    run, tracked = run_of(two_replicas, 50)
    daemon.send(Flush(1, id=4, reason="stop", then=Then.STOP))

    with pytest.raises(SystemExit) as leaving, run:
        daemon.wait_for(Flushing)
        training.train(run, tracked, two_replicas)
    committed = daemon.wait_for(Committed)

    assert leaving.value.code == 143
    assert committed.flushes == (4,)
    assert names(directory) == [committed.checkpoint]
    assert not daemon.all_of(Done) and not daemon.all_of(Failed)


def test_flush_of_a_step_that_is_saved_is_answered_with_that_checkpoint(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon(checkpoint_interval=Interval(steps=2))
    run, tracked = run_of(two_replicas, 2)
    with run:
        training.train(run, tracked, two_replicas)
        written_at = (directory / "step-0000000002.a1" / layout.MANIFEST).stat().st_mtime_ns
        daemon.send(Flush(1, id=5, reason="operator", then=Then.GO_ON))
        daemon.wait_for(Flushing)
    answer = daemon.wait_for(Committed, among=lambda committed: committed.flushes == (5,))

    assert answer.checkpoint == "step-0000000002.a1"
    assert (directory / "step-0000000002.a1" / layout.MANIFEST).stat().st_mtime_ns == written_at


def test_exception_saves_nothing_and_is_the_last_word(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon()
    run, _ = run_of(two_replicas, 5)

    with pytest.raises(ZeroDivisionError), run:
        run.step_done(loss=1 / 0)
    failed = daemon.wait_for(Failed)

    assert failed.error == "ZeroDivisionError: division by zero"
    assert "run.step_done(loss=1 / 0)" in failed.traceback
    assert names(directory) == []


def test_retention_keeps_the_newest_and_the_best(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon(checkpoint_interval=Interval(steps=1), checkpoint_keep=2, checkpoint_keep_best=("min", "loss"))
    run, _ = run_of(two_replicas, None)
    with run:
        for loss in (3.0, 1.0, 2.0, 2.5, 4.0):
            run.step_done(loss=loss)

    assert names(directory) == ["step-0000000002.a1", "step-0000000004.a1", "step-0000000005.a1"]


def test_the_newest_checkpoint_alone_stays_in_the_page_cache(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    page_cache.skip_without_disk(directory.parent)
    under_daemon(checkpoint_interval=Interval(steps=1), checkpoint_keep=3)
    run, _ = run_of(two_replicas, None)
    with run:
        for _ in range(2):
            run.step_done()
        older, newest = (directory / f"step-000000000{step}.a1" / "ckpt.data-00000-of-00001" for step in (1, 2))

        wait_until(lambda: newest.exists() and page_cache.cached_bytes(older) == 0, "the older one is dropped")
        assert page_cache.is_cached(newest)


def test_retention_does_not_depend_on_the_pointer_for_other_tools(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon(checkpoint_interval=Interval(steps=1), checkpoint_keep=2)
    run, _ = run_of(two_replicas, None)
    with run:
        (directory / layout.POINTER / "in the way").mkdir(parents=True)
        for _ in range(4):
            run.step_done()

    assert names(directory) == ["step-0000000003.a1", "step-0000000004.a1"]


def test_metrics_that_are_not_finite_are_left_out(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon()
    run, _ = run_of(two_replicas, None)
    with run:
        run.step_done(score=math.nan, rate=0.5)

    assert manifest.verify_checkpoint(directory / "step-0000000001.a1").metrics == {"rate": 0.5}


def test_each_replicas_figures_are_committed_with_the_tensors(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon()
    run, tracked = run_of(two_replicas, 8)
    with run:
        training.train(run, tracked, two_replicas)
    found = state_file.parse_state((directory / "step-0000000008.a1" / layout.STATE).read_bytes())

    first, second = found.replica_metrics["loss"]
    assert first != second
    assert found.metrics["loss"] == (first + second) / 2
    assert (found.step, found.position) == (8, state_file.Position(epoch=1, batch=2, examples=32))


def test_manifest_says_what_the_bits_depend_on(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon(job="digits")
    run, _ = run_of(two_replicas, None)
    with run:
        run.step_done()
    proof = manifest.verify_checkpoint(directory / "step-0000000001.a1")

    assert (proof.job, proof.topology["strategy"], proof.topology["replicas"]) == ("digits", "MirroredStrategy", 2)
    assert proof.versions["tensorflow"] == tf.__version__


def test_other_programs_find_the_newest_through_the_pointer(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    under_daemon()
    run, _ = run_of(two_replicas, None)
    with run:
        run.step_done()

    assert tf.train.latest_checkpoint(str(directory)) == str(directory / "step-0000000001.a1" / "ckpt")


@pytest.mark.integration
def test_full_disk_costs_the_save_and_training_goes_on(
    daemon: DaemonEnd, begin: Begin, two_replicas: Any, small_disk: Path
) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * FILLER_BYTES)
    begin(
        Launch(
            control=daemon.control(), checkpoint_dir=small_disk / "checkpoints", checkpoint_interval=Interval(steps=2)
        )
    )
    daemon.send(Go(1, restore=None))
    run, tracked = run_of(two_replicas, 6)
    step = training.step_of(tracked, two_replicas)
    with run:
        for images, labels in run.batches(training.data()):
            if run.step == 3:
                daemon.wait_for(SaveFailed)  # said as it happens, not at the next save
                filler.unlink()
            run.step_done(loss=step(images, labels))
    daemon.wait_for(Done)

    (failure,) = daemon.all_of(SaveFailed)
    assert failure.step == 2
    assert "cannot save step-0000000002.a1" in failure.error
    assert names(small_disk / "checkpoints") == ["step-0000000006.a1"]
    assert not list((small_disk / "checkpoints").glob("*.partial"))


@pytest.mark.integration
@pytest.mark.parametrize("allowed", [True, False])
def test_older_checkpoints_make_room_on_a_full_disk_if_they_may(
    allowed: bool, daemon: DaemonEnd, begin: Begin, two_replicas: Any, small_disk: Path
) -> None:
    subprocess.run(
        ["mount", "-o", "remount,size=400k", small_disk], check=True
    )  # for some checkpoints, far fewer than eight
    directory = small_disk / "checkpoints"
    keeping = {"checkpoint_keep": 20, "checkpoint_make_room": allowed}
    begin(Launch(control=daemon.control(), checkpoint_dir=directory, checkpoint_interval=Interval(steps=1), **keeping))
    daemon.send(Go(1, restore=None))
    run, tracked = run_of(two_replicas, None)
    with pytest.raises(ZeroDivisionError), run:
        step = training.step_of(tracked, two_replicas)
        for _ in run.epochs(2):
            for images, labels in run.batches(training.data()):
                if saved := run.step:
                    outcome = daemon.wait_for(Committed | SaveFailed, among=lambda said: said.step == saved)
                    if isinstance(outcome, SaveFailed) or saved == 6:
                        raise ZeroDivisionError
                run.step_done(loss=step(images, labels))

    whole = names(directory)
    assert all(manifest.verify_checkpoint(directory / name) for name in whole)
    assert not list(directory.glob("*.partial"))
    assert (outcome.step, isinstance(outcome, Committed)) == ((6, True) if allowed else (outcome.step, False))
    assert whole[-1] == f"step-{6 if allowed else outcome.step - 1:010d}.a1"
    assert (whole[0] == "step-0000000001.a1") is not allowed


@pytest.mark.integration
def test_told_to_stop_with_a_full_disk_leaves_with_74(
    daemon: DaemonEnd, begin: Begin, two_replicas: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LAST_SAVE_PAUSES_S", (0.01,))
    begin(Launch(control=daemon.control(), checkpoint_dir=small_disk / "checkpoints"))
    daemon.send(Go(1, restore=None))
    run, tracked = run_of(two_replicas, 6)
    with pytest.raises(SystemExit) as leaving, run:
        (small_disk / "filler").write_bytes(b"x" * FILLER_BYTES)
        daemon.send(Flush(1, id=3, reason="stop", then=Then.STOP))
        daemon.wait_for(Flushing)
        training.train(run, tracked, two_replicas)

    assert leaving.value.code == 74
    assert daemon.wait_for(SaveFailed).flushes == (3,)
    assert "told to stop" in daemon.wait_for(Failed).error


@pytest.mark.integration
def test_training_that_cannot_commit_its_end_is_not_done(
    daemon: DaemonEnd, begin: Begin, two_replicas: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LAST_SAVE_PAUSES_S", (0.01, 0.01))
    begin(Launch(control=daemon.control(), checkpoint_dir=small_disk / "checkpoints"))
    daemon.send(Go(1, restore=None))
    run, tracked = run_of(two_replicas, 2)
    with pytest.raises(SystemExit) as leaving, run:
        (small_disk / "filler").write_bytes(b"x" * FILLER_BYTES)
        training.train(run, tracked, two_replicas)
    daemon.wait_for(Failed)

    assert leaving.value.code == 74
    assert [failed.step for failed in daemon.all_of(SaveFailed)].count(2) == 3  # a slow first step may be saved, too
    assert not daemon.all_of(Done)


def test_directory_that_cannot_be_made_leaves_with_73(
    daemon: DaemonEnd, begin: Begin, two_replicas: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "file" / "checkpoints"))
    daemon.send(Go(1, restore=None))
    run, _ = run_of(two_replicas, 2)
    with pytest.raises(SystemExit) as leaving, run:
        pass

    assert leaving.value.code == 73
    assert str(tmp_path / "file") in daemon.wait_for(Failed).error


@pytest.mark.integration
def test_directory_held_by_another_worker_leaves_with_75(
    daemon: DaemonEnd, under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    directory.mkdir()
    holder = subprocess.Popen(["flock", directory / layout.LOCK, "sh", "-c", "echo held; cat"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert holder.stdout is not None
    holder.stdout.readline()
    (directory / layout.LOCK).write_text("pid 4711 attempt 3 on elsewhere\n")
    under_daemon()
    run, _ = run_of(two_replicas, 2)
    with pytest.raises(SystemExit) as leaving, run:
        pass
    holder.communicate()

    assert leaving.value.code == 75
    assert "pid 4711" in daemon.wait_for(Failed).error


def test_leftovers_of_an_interrupted_save_are_swept(
    under_daemon: Callable[..., None], two_replicas: Any, directory: Path
) -> None:
    leftover = directory / "step-0000000007.a1.partial"
    leftover.mkdir(parents=True)
    (leftover / "ckpt.index").write_bytes(b"half")
    under_daemon()
    run, _ = run_of(two_replicas, None)
    with run:
        run.step_done()

    assert not leftover.exists()


def test_without_a_directory_it_trains_with_one_warning(
    begin: Begin, two_replicas: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(Launch())
    run, tracked = run_of(two_replicas, 2)
    with run:
        training.train(run, tracked, two_replicas)

    assert run.step == 2
    assert capsys.readouterr().err.splitlines() == [
        "stepkeeper: this run saves no checkpoints; give worker.Run a directory=, or set the job's checkpoint_dir",
        "stepkeeper: no checkpoint to restore; training starts at step 0",
        "stepkeeper: training is complete at step 2",
    ]


def test_flush_without_a_directory_is_answered_with_the_reason(
    daemon: DaemonEnd, begin: Begin, two_replicas: Any
) -> None:
    begin(Launch(control=daemon.control()))
    daemon.send(Go(1, restore=None))
    daemon.send(Flush(1, id=6, reason="operator", then=Then.GO_ON))
    run, _ = run_of(two_replicas, None)
    with run:
        daemon.wait_for(Flushing)
        run.step_done()

    assert daemon.wait_for(SaveFailed).flushes == (6,)
    assert daemon.wait_for(Done).step == 1


def test_only_a_full_disk_counts_as_one() -> None:
    """TensorFlow has one class for it and for a lack of memory."""
    said = tf.errors.ResourceExhaustedError

    assert not tensorflow_writer._is_full(said(None, None, "OOM when allocating tensor with shape[4096,4096]"))
    assert tensorflow_writer._is_full(said(None, None, "/runs/a/ckpt.data-00000-of-00001; No space left on device"))
    assert tensorflow_writer._is_full(said(None, None, "/runs/a/ckpt.data-00000-of-00001; Disk quota exceeded"))
