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


def per_epoch(*counts: int) -> Callable[[int], Any]:
    """A function that makes a dataset of so many batches for each epoch."""
    return lambda epoch: tf.data.Dataset.range(counts[min(epoch, len(counts) - 1)]).batch(1)


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "on other data than before" in line]


def test_shorter_dataset_that_a_function_makes_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(per_epoch(6), tmp_path)
    train(per_epoch(6), tmp_path)
    assert not said(capsys)

    train(per_epoch(5), tmp_path, steps=5)

    assert "number of batches in epoch 0 of the data is 5, was 6" in said(capsys)[0]


def through_epochs(data: Any, folder: Path, epochs: int) -> None:
    with worker.Run(tf.train.Checkpoint(count=tf.Variable(0)), directory=folder, interval="1000 steps") as run:
        for _ in run.epochs(epochs):
            for _ in run.batches(data):
                run.step_done()


def test_shorter_dataset_from_the_next_epoch_on_is_said_if_all_before_were_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    through_epochs(per_epoch(6), tmp_path, 2)
    through_epochs(per_epoch(4), tmp_path, 3)

    assert "number of batches in epoch 2 of the data is 4, was 6" in said(capsys)[0]


def test_epochs_of_different_lengths_are_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for epochs in (1, 2, 3, 4):
        through_epochs(per_epoch(2, 3, 5, 4), tmp_path, epochs)

    assert not said(capsys)


ROWS = np.arange(240, dtype=np.float32).reshape(120, 2)
CONTENTS: dict[str, Callable[[np.ndarray[Any, Any]], Any]] = {
    "dataset of arrays": lambda rows: (
        tf.data.Dataset.from_tensor_slices((rows, rows[:, 0])).shuffle(9, seed=1).batch(4)
    ),
    "examples": lambda rows: worker.Examples(rows, batch_size=4),
    "names": lambda rows: tf.data.Dataset.from_tensor_slices([f"{row[0]}.png" for row in rows]).batch(4),
}


@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS.keys())
def test_other_content_of_as_many_rows_is_said(
    data: Callable[[Any], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(data(ROWS), tmp_path)
    train(data(ROWS.copy()), tmp_path)
    assert not said(capsys)

    train(data(ROWS[::-1]), tmp_path)

    assert said(capsys)[0].endswith("content of the data is another one, in a sample of their rows")


def test_files_in_another_folder_are_the_same_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("/tmp/1", "/scratch/2/data"):
        names = [f"{place}/{number}.png" for number in range(24)]
        train(tf.data.Dataset.from_tensor_slices(names).batch(4), tmp_path)

    assert not said(capsys)


def test_other_arrays_of_fit_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for epochs, images in ((1, tf.zeros([24, 8, 8, 1])), (2, tf.zeros([24, 8, 8, 1])), (3, tf.ones([24, 8, 8, 1]))):
        assert not said(capsys)
        tracked = training.build(tf.distribute.get_strategy())
        tracked.model.compile(tracked.optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        worker.keras.fit(
            tracked.model, images, np.zeros(24, "int64"), batch_size=4, epochs=epochs, directory=tmp_path, verbose=0
        )

    assert "content of the data is another one" in said(capsys)[0]
