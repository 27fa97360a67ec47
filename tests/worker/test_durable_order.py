"""Every instant of a save: what a kill there leaves, and what an error there leaves, is a whole checkpoint."""

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import worker
from supervisor.protocol import checkpoints, layout, manifest
from supervisor.protocol.launch import Launch
from supervisor.protocol.messages import Committed, Done, Flush, Flushing, Go, SaveFailed, Then
from supervisor.protocol.retention import RetentionPolicy
from tests.worker.daemon_end import DaemonEnd

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]
Watch = Callable[[Callable[[int, int], None]], None]
OPERATIONS = ("mkdir", "pwrite", "fsync", "rename", "replace", "unlink", "rmdir")  # all that a save does to the disk


@pytest.fixture
def at_each(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Calls something with the step that is saved and n = 1, 2, 3, ... before the n-th operation of its save."""
    step, done = 0, 0

    def watch(before: Callable[[int, int], None]) -> None:
        for name in OPERATIONS:
            real = getattr(os, name)

            def operation(*arguments: Any, _real: Any = real, _name: str = name, **named: Any) -> Any:
                nonlocal step, done
                if _name == "mkdir" and (saved := layout.checkpoint_in(Path(arguments[0]).name)) is not None:
                    step, done = saved.step, 0  # a save begins with its folder
                done += 1
                before(step, done)
                return _real(*arguments, **named)

            monkeypatch.setattr(os, name, operation)

    yield watch
    monkeypatch.undo()


def counted(run: worker.Run, count: tf.Variable) -> None:
    count.assign_add(1)
    run.step_done()


def newest(directory: Path) -> tuple[int, int]:
    """Step of the newest whole checkpoint, and the count in it."""
    selection = checkpoints.select(directory)
    path = selection.path
    assert path is not None and not selection.refused
    value = tf.train.load_checkpoint(str(path / "ckpt")).get_tensor("count/.ATTRIBUTES/VARIABLE_VALUE")
    return manifest.verify(path).step, int(value)


def test_kill_before_any_operation_of_a_save_leaves_the_old_or_the_new_whole(
    begin: Begin, tmp_path: Path, at_each: Watch
) -> None:
    directory, images = tmp_path / "checkpoints", tmp_path / "images"
    begin(Launch(checkpoint_dir=directory, retention=RetentionPolicy(newest=1)))
    count = tf.Variable(0, dtype=tf.int64)
    copying = False

    numbers = itertools.count()

    def image(step: int, n: int) -> None:  # what the page cache holds survives a kill, and nothing else does
        nonlocal copying
        if not copying:
            copying = True
            shutil.copytree(directory, images / f"{next(numbers):03d}")
            copying = False

    with worker.Run(tf.train.Checkpoint(count=count)) as run:
        counted(run, count)
    with worker.Run(tf.train.Checkpoint(count=count)) as run:
        counted(run, count)
        at_each(image)

    left = [newest(folder) for folder in sorted(images.iterdir())]
    assert set(left) == {(1, 1), (2, 2)}
    assert left == sorted(left), "the old one until the commit, the new one from there on"
    for folder in images.iterdir():
        checkpoints.sweep_partials(folder)
        assert not list(folder.glob("*.partial")) and not list(folder.glob(".checkpoint.*"))


def test_error_in_any_operation_of_a_save_leaves_the_old_or_the_new_whole_and_training_goes_on(
    daemon: DaemonEnd, begin: Begin, tmp_path: Path, at_each: Watch
) -> None:
    directory = tmp_path / "checkpoints"
    begin(Launch(control=daemon.control(), checkpoint_dir=directory, retention=RetentionPolicy(newest=2)))
    daemon.send(Go(1, restore=None))
    count = tf.Variable(0, dtype=tf.int64)
    operations: dict[int, int] = {}  # of each step's save

    def fail(step: int, n: int) -> None:  # steps 2, 4, 6, ...: at operation 1, 2, 3, ...; the others not
        operations[step] = n
        if step == 2 * n:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "disk")

    def saved(run: worker.Run) -> type:
        """Trains a step and saves it, after all that the save before it still had to do; what was answered."""
        number = run.step + 1
        daemon.send(Flush(1, id=number, reason="operator", then=Then.GO_ON))
        daemon.wait_for(Flushing, among=lambda said: said.id == number)
        counted(run, count)
        return type(daemon.wait_for(Committed | SaveFailed, among=lambda said: number in said.flushes))

    outcomes = []
    with worker.Run(tf.train.Checkpoint(count=count)) as run:
        saved(run)
        at_each(fail)
        while not outcomes or operations[run.step - 1] >= len(outcomes):
            outcomes.append(saved(run))
            expected = run.step if outcomes[-1] is Committed else run.step - 1
            assert newest(directory) == (expected, expected)
            assert not (directory / f"step-{run.step:010d}.a1.partial").exists()
            assert saved(run) is Committed, "what failed is not in the way of the next save"
    daemon.wait_for(Done)

    before_commit = outcomes.count(SaveFailed)
    assert before_commit >= 12
    assert outcomes == [SaveFailed] * before_commit + [Committed] * (len(outcomes) - before_commit)
    assert len(outcomes) > before_commit + 1, "there are operations after the commit, and they can't undo it"
