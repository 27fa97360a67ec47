"""Saves beside training: what they hold, whom they answer, and when training waits for them."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol import layout
from supervisor.protocol.available_memory import resident_bytes
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import Committed, Done, Failed, Flush, Flushing, Go, SaveFailed, Then
from tests.waiting import wait_until
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker.checkpoint import bundle_writer, copy_memory, snapshot
from worker.checkpoint.checkpoint_tensors import CheckpointTensors
from worker.checkpoint.copy_memory import BufferPool
from worker.checkpoint.tensorflow_writer import PREPARED_BYTES

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
FILES = ("ckpt.index", "ckpt.data-00000-of-00001")


class Disk:
    """Every fsync of a thread that does not train waits while `held`; `asked` is set when one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = threading.Event()
        self._free = threading.Event()
        self._fsync, trains = os.fsync, threading.current_thread()

        def fsync(descriptor: int) -> None:
            if threading.current_thread() is not trains:
                self.asked.set()
                self._free.wait(10)
                self._free.set()  # a test that fails does not wait again
            self._fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fsync)

    def free(self) -> None:
        self._free.set()

    def free_soon(self) -> None:
        """While the thread that trains waits, or, if it doesn't, after it went on."""
        threading.Timer(0.2, self.free).start()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    held = Disk(monkeypatch)
    yield held
    held.free()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def start(daemon: DaemonEnd, begin: Begin, directory: Path) -> Callable[..., None]:
    def start(**settings: Any) -> None:
        begin(Launch(control=daemon.control(), checkpoint_dir=directory, **settings))
        daemon.send(Go(1, restore=None))

    return start


def counting() -> tuple[tf.Variable, tf.train.Checkpoint]:
    count = tf.Variable(0, dtype=tf.int64)
    return count, tf.train.Checkpoint(count=count)


def stepped(run: worker.Run, count: tf.Variable, steps: int = 1) -> None:
    for _ in range(steps):
        count.assign_add(1)
        run.step_done()


def asked(daemon: DaemonEnd, number: int, then: Then = Then.GO_ON) -> None:
    """A flush that the worker has heard of."""
    daemon.send(Flush(1, id=number, reason="operator", then=then))
    daemon.wait_for(Flushing, among=lambda flushing: flushing.id == number)


def written(taken: snapshot.Snapshot, folder: Path) -> None:
    with NewFolder(folder) as made:
        taken.write(made, layout.PREFIX)
        made.end()


def saved_count(directory: Path, step: int) -> int:
    path = directory / f"step-{step:010d}.a1" / layout.PREFIX
    return int(tf.train.load_checkpoint(str(path)).get_tensor("count/.ATTRIBUTES/VARIABLE_VALUE"))


def test_files_are_those_of_a_plain_write_although_training_went_on(two_replicas: Any, tmp_path: Path) -> None:
    tracked = training.build(two_replicas)
    with worker.Run(tracked, strategy=two_replicas, total_steps=3, directory=tmp_path / "run") as run:
        training.train(run, tracked, two_replicas)
    tracked.write(str(tmp_path / layout.PREFIX))
    taken = snapshot.capture_tensors(CheckpointTensors(tracked), copied=True, pool=BufferPool())
    with worker.Run(tracked, strategy=two_replicas, total_steps=6, directory=tmp_path / "run") as run:
        training.train(run, tracked, two_replicas)
    written(taken, tmp_path / "later")

    for name in FILES:
        assert (tmp_path / "later" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_copy_shares_no_memory_with_a_variable() -> None:
    count, tracked = counting()
    taken = snapshot.capture_tensors(CheckpointTensors(tracked), copied=True, pool=BufferPool())

    inside = np.asarray(count.read_value_no_copy())
    copied = dict(taken.elements())
    assert not any(np.shares_memory(inside, elements) for elements in copied.values())
    assert copied["count/.ATTRIBUTES/VARIABLE_VALUE"] == inside


def test_other_trackables_are_taken_as_a_plain_write_takes_them(tmp_path: Path) -> None:
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(tf.constant(["a"]), tf.constant([1], tf.int64))
    half, text = tf.Variable([1.5], dtype=tf.bfloat16), tf.Variable("words")
    tracked = tf.train.Checkpoint(table=table, half=half, text=text)
    tracked.write(str(tmp_path / "plain"))
    taken = snapshot.capture_tensors(CheckpointTensors(tracked), copied=True, pool=BufferPool())
    table.insert(tf.constant(["b"]), tf.constant([2], tf.int64))
    half.assign([2.5])
    text.assign("others")
    written(taken, tmp_path / "taken")

    assert (tmp_path / "plain.data-00000-of-00001").read_bytes() == (tmp_path / "taken" / FILES[1]).read_bytes()


def test_state_that_can_not_be_copied_is_saved_while_training_waits(
    daemon: DaemonEnd, start: Callable[..., None], directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(checkpoint_interval=Interval(steps=1))
    count, iterator = tf.Variable(0, dtype=tf.int64), iter(tf.data.Dataset.range(9))
    tracked = tf.train.Checkpoint(count=count, iterator=iterator)
    with worker.Run(tracked) as run:
        stepped(run, count, 3)
    daemon.wait_for(Committed, among=lambda committed: committed.step == 3)

    assert [saved_count(directory, step) for step in (1, 2, 3)] == [1, 2, 3]
    assert all(said.save_s == pytest.approx(said.stall_s, abs=1e-3) for said in daemon.all_of(Committed))
    (remark,) = [line for line in capsys.readouterr().err.splitlines() if "training waits while" in line]
    assert "iterator/.ATTRIBUTES/ITERATOR_STATE is of type variant" in remark


def test_training_waits_for_saves_while_memory_for_a_copy_is_short(
    daemon: DaemonEnd,
    start: Callable[..., None],
    directory: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    start(checkpoint_interval=Interval(steps=1))
    count, tracked = counting()
    with worker.Run(tracked) as run:
        with monkeypatch.context() as patch:
            patch.setattr(copy_memory.mmap, "mmap", refuse)
            stepped(run, count, 2)
        stepped(run, count)
    daemon.wait_for(Committed, among=lambda committed: committed.step == 3)

    assert [saved_count(directory, step) for step in (1, 2, 3)] == [1, 2, 3]
    first, second = daemon.all_of(Committed)[:2]
    assert (first.save_s, second.save_s) == pytest.approx((first.stall_s, second.stall_s), abs=1e-3)
    (remark,) = [line for line in capsys.readouterr().err.splitlines() if "training waits while" in line]
    assert "there is no memory for a copy of the state" in remark


def test_a_lack_of_memory_while_it_is_written_costs_that_save_only(
    daemon: DaemonEnd, start: Callable[..., None], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise MemoryError("no room")

    start()
    count, tracked = counting()
    with worker.Run(tracked) as run:
        with monkeypatch.context() as patch:
            patch.setattr(bundle_writer.crc32c, "extend", refuse)
            asked(daemon, 1)
            stepped(run, count)
            said = daemon.wait_for(SaveFailed)
        stepped(run, count, 2)

    assert said.flushes == (1,) and "cannot save step-0000000001.a1: MemoryError: no room" in said.error
    assert daemon.wait_for(Done).step == 3 and saved_count(directory, 3) == 3


def test_training_goes_on_while_a_save_is_written(
    daemon: DaemonEnd, start: Callable[..., None], directory: Path, disk: Disk
) -> None:
    start(checkpoint_interval=Interval(seconds=1000.0))
    count, tracked = counting()
    with worker.Run(tracked) as run:
        stepped(run, count)
        asked(daemon, 1)
        stepped(run, count)  # step 2: taken
        assert disk.asked.wait(30)
        stepped(run, count, 5)
        daemon.read()
        assert not daemon.all_of(Committed)
        disk.free()
        first = daemon.wait_for(Committed)

    assert (first.step, first.flushes, saved_count(directory, 2)) == (2, (1,), 2)
    assert 0 < first.stall_s < first.save_s
    assert saved_count(directory, 7) == 7


def test_flush_uses_the_save_in_flight_of_the_same_step(
    daemon: DaemonEnd, start: Callable[..., None], directory: Path, disk: Disk
) -> None:
    start()
    count, tracked = counting()
    with worker.Run(tracked) as run:
        batches = run.batches(tf.data.Dataset.range(9))
        next(batches)
        asked(daemon, 1)
        stepped(run, count)
        assert disk.asked.wait(30)
        asked(daemon, 2)
        next(batches)  # the boundary before step 2 serves it
        disk.free()
        only = daemon.wait_for(Committed)
        stepped(run, count)

    daemon.wait_for(Done)
    assert (only.step, only.flushes) == (1, (1, 2))
    assert [said.step for said in daemon.all_of(Committed)] == [1, 2]


def test_flush_waits_for_the_save_in_flight_of_an_older_step(
    daemon: DaemonEnd, start: Callable[..., None], directory: Path, disk: Disk
) -> None:
    start()
    count, tracked = counting()
    with worker.Run(tracked) as run:
        asked(daemon, 1)
        stepped(run, count)
        assert disk.asked.wait(30)
        asked(daemon, 2)
        disk.free_soon()
        stepped(run, count)
        daemon.wait_for(Committed, among=lambda committed: committed.step == 2)

    assert [(said.step, said.flushes) for said in daemon.all_of(Committed)] == [(1, (1,)), (2, (2,))]
    assert (saved_count(directory, 1), saved_count(directory, 2)) == (1, 2)


def test_stop_leaves_after_both_commits(
    daemon: DaemonEnd, start: Callable[..., None], directory: Path, disk: Disk
) -> None:
    start()
    count, tracked = counting()
    with pytest.raises(SystemExit) as leaving, worker.Run(tracked) as run:
        asked(daemon, 1)
        stepped(run, count)
        assert disk.asked.wait(30)
        asked(daemon, 2, Then.STOP)
        disk.free_soon()
        stepped(run, count)

    daemon.wait_for(Committed, among=lambda committed: committed.flushes == (2,))
    assert leaving.value.code == 143
    assert [said.step for said in daemon.all_of(Committed)] == [1, 2]
    assert [str(name) for name in selection.committed_checkpoints(directory)] == [
        "step-0000000002.a1",
        "step-0000000001.a1",
    ]


def test_exception_lets_the_save_in_flight_commit(
    daemon: DaemonEnd, start: Callable[..., None], directory: Path, disk: Disk
) -> None:
    start()
    count, tracked = counting()
    with pytest.raises(ZeroDivisionError), worker.Run(tracked) as run:
        asked(daemon, 1)
        stepped(run, count)
        assert disk.asked.wait(30)
        disk.free_soon()
        run.step_done(loss=1 / 0)

    assert saved_count(directory, 1) == 1
    assert daemon.wait_for(Failed).error.startswith("ZeroDivisionError")


def test_interval_in_seconds_does_not_wait_for_the_save_in_flight(
    daemon: DaemonEnd, start: Callable[..., None], disk: Disk
) -> None:
    start(checkpoint_interval=Interval(seconds=0.001))
    count, tracked = counting()
    with worker.Run(tracked) as run:
        while not disk.asked.is_set():
            stepped(run, count)
        stepped(run, count, 20)
        daemon.read()
        assert not daemon.all_of(Committed)
        disk.free()
        daemon.wait_for(Committed)


def test_defect_of_the_writer_ends_training_at_the_next_step(
    daemon: DaemonEnd, start: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    start()
    count, tracked = counting()
    with pytest.raises(ZeroDivisionError), worker.Run(tracked) as run:
        monkeypatch.setattr(os, "fsync", lambda descriptor: 1 / 0)
        asked(daemon, 1)
        stepped(run, count)
        while True:
            stepped(run, count)

    assert "division by zero" in daemon.wait_for(Failed).error
    assert [said.flushes for said in daemon.all_of(SaveFailed)] == [(1,)], "who asked is answered"


def test_the_first_step_takes_the_memory_of_a_copy_beside_training(tmp_path: Path) -> None:
    table = tf.Variable(tf.zeros([PREPARED_BYTES // 4]))
    with worker.Run(tf.train.Checkpoint(table=table), directory=tmp_path, interval="1000000 steps") as run:
        table[0].assign(1.0)
        before = resident_bytes()
        run.step_done()
        wait_until(lambda: resident_bytes() - before > PREPARED_BYTES, "the memory is there")
