"""What a checkpoint contains is asked of TensorFlow once, and again when the tracked objects are others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from supervisor.protocol.checkpoints.new_folder import NewFolder
from worker.checkpoint import snapshot
from worker.checkpoint.checkpoint_tensors import CheckpointTensors
from worker.checkpoint.copy_memory import BufferPool

pytestmark = pytest.mark.tensorflow


class Note(tf.train.experimental.PythonState):
    """A text that is saved, without a variable."""

    text = "one"

    def serialize(self) -> str:
        return self.text

    def deserialize(self, string_value: str) -> None:
        self.text = string_value


def tracked_model() -> tf.train.Checkpoint:
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(4), tf.keras.layers.BatchNormalization()])
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model=model, optimizer=optimizer, notes=[tf.Variable(1.0)], text=tf.Variable("a"))


def assign(tracked: Any) -> None:
    tracked.model.layers[0].kernel.assign_add(tf.ones((3, 4)))
    tracked.text.assign("longer than before")


def add(tracked: Any) -> None:
    tracked.notes.append(tf.Variable([1, 2]))


def replace(tracked: Any) -> None:
    tracked.text = tf.Variable("another variable of the same name")


def rename(tracked: Any) -> None:
    tracked.one = tf.Variable(1.0)
    tracked.other, tracked.one = tracked.one, tf.Variable(2.0)


def replace_inside_of_keras(tracked: Any) -> None:
    tracked.model.layers[0].bias._value = tf.Variable(tf.fill((4,), 7.0))


def note(tracked: Any) -> None:
    tracked.note = Note()


def change_note(tracked: Any) -> None:
    tracked.note.text = "two"


def table(tracked: Any) -> None:
    tracked.table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=-1)
    tracked.table.insert(tf.constant(["a"]), tf.constant([1], tf.int64))


def insert(tracked: Any) -> None:
    tracked.table.insert(tf.constant(["b"]), tf.constant([2], tf.int64))


CHANGES: tuple[tuple[Callable[[Any], None], ...], ...] = (
    (assign, assign),
    (add, assign, add),
    (replace, assign),
    (rename, assign),
    (replace_inside_of_keras, assign),
    (note, change_note),
    (table, insert),
)


@pytest.mark.parametrize("changes", CHANGES, ids=lambda each: each[0].__name__)
def test_each_save_is_what_tensorflow_writes_then(changes: tuple[Callable[[Any], None], ...], tmp_path: Path) -> None:
    tracked, pool = tracked_model(), BufferPool()
    tensors = CheckpointTensors(tracked)
    for number, change in enumerate((lambda tracked: None, *changes)):
        change(tracked)
        theirs, ours = tmp_path / f"theirs{number}", tmp_path / f"ours{number}"
        tracked.write(str(theirs / "ckpt"))
        captured = snapshot.capture_tensors(tensors, copied=True, pool=pool)
        with NewFolder(ours) as folder:
            captured.write(folder, "ckpt")
            folder.end()
        captured.release()

        for path in theirs.iterdir():
            assert (ours / path.name).read_bytes() == path.read_bytes(), change.__name__


def test_tensorflow_is_asked_once_while_the_objects_are_the_same() -> None:
    tracked, asked = tracked_model(), []
    tensors, real = CheckpointTensors(tracked), tracked._saver._gather_serialized_tensors
    tracked._saver._gather_serialized_tensors = lambda: (asked.append(1), real())[1]
    for _ in range(3):
        tracked.notes[0].assign(2.0)
        found = {key: tensor for key, _, tensor in tensors.read()}

    assert len(asked) == 1
    assert found["notes/0/.ATTRIBUTES/VARIABLE_VALUE"].numpy() == 2


def test_mirrored_are_those_that_every_replica_has_alike(two_replicas: Any) -> None:
    on_read = tf.VariableSynchronization.ON_READ
    with two_replicas.scope():
        layer = tf.keras.layers.Dense(2)
        layer.build((1, 3))
        tracked = tf.train.Checkpoint(
            layer=layer,
            common=tf.Variable([1.0, 2.0]),
            own=tf.Variable(0.0, synchronization=on_read, aggregation=tf.VariableAggregation.SUM),
        )
    tracked.outside = tf.Variable(3.0)
    tensors = CheckpointTensors(tracked)
    for _ in range(2):
        names = {name for name, _, _ in tensors.read()}

        value = "/.ATTRIBUTES/VARIABLE_VALUE"
        assert tensors.mirrored == {f"layer/_kernel{value}", f"layer/bias{value}", f"common{value}"}
        assert names > tensors.mirrored
