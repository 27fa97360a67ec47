"""A start that reads other data than its checkpoint was trained on says so."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Launch
from supervisor.protocol.wire.messages import Done, Go, Restored
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]


def dataset(count: int = 24, batch: int = 4, seed: int = 1, width: int = 2) -> Any:
    rows = tf.data.Dataset.range(count).shuffle(count, seed=seed).map(lambda number: tf.fill([width], number))
    return rows.batch(batch)


def examples(count: int = 24, batch: int = 4, **settings: Any) -> worker.Examples:
    return worker.Examples(np.arange(count), batch_size=batch, **settings)


def train(data: Any, folder: Path, steps: int = 2) -> None:
    with worker.Run(tf.train.Checkpoint(count=tf.Variable(0)), directory=folder, interval="1000 steps") as run:
        for _ in run.batches(data):
            run.step_done()
            if run.step % steps == 0:
                break


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "longer dataset": (dataset, lambda: dataset(28), "number of batches of the data is 7, was 6"),
    "other batch size": (dataset, lambda: dataset(batch=6), "batch size of the data is 6, was 4"),
    "other elements": (dataset, lambda: dataset(width=3), r"elements of the data is int64[3], was int64[2]"),
    "other seed": (dataset, lambda: dataset(seed=2), "seeds of the data is ShuffleDataset"),
    "more examples": (examples, lambda: examples(28), "number of examples of the data is 28, was 24"),
    "another order": (examples, lambda: examples(seed=3), "shuffled with seed 3, was shuffled with seed 0"),
}


@pytest.mark.parametrize(("first", "then", "expected"), CHANGES.values(), ids=CHANGES.keys())
def test_other_data_than_before_are_said(
    first: Callable[[], Any],
    then: Callable[[], Any],
    expected: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tf.random.set_seed(1)
    train(first(), tmp_path)
    train(first(), tmp_path)
    assert "other data" not in capsys.readouterr().err

    train(then(), tmp_path)

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "on other data than before" in line]
    assert expected in line
    assert line.count(" of the data is ") == 1


def test_other_data_of_fit_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for width, epochs in ((4, 1), (6, 2)):
        tracked = training.build(tf.distribute.get_strategy())
        tracked.model.compile(tracked.optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        data = tf.data.Dataset.from_tensor_slices((tf.zeros([24, 8, 8, 1]), tf.zeros([24], tf.int64))).batch(width)
        worker.keras.fit(tracked.model, data, epochs=epochs, directory=tmp_path, verbose=0)

    assert "batch size of the data is 6, was 4" in capsys.readouterr().err


def test_daemon_is_told_once_more_what_changed(daemon: DaemonEnd, begin: Begin, tmp_path: Path) -> None:
    train(examples(), tmp_path)
    (newest,) = tmp_path.glob("step-*")
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=str(newest)))
    train(examples(32), tmp_path)
    daemon.wait_for(Done)

    first, again = daemon.all_of(Restored)
    assert (first.changed, again.changed) == ((), ("number of examples of the data is 32, was 24",))
    assert (first.step, first.checkpoint) == (again.step, again.checkpoint) == (2, newest.name)
