"""A large state is restored into the memory that its variables have, to the bits that TensorFlow would restore."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from tests.places import ROOT
from worker.checkpoint import restore_in_place as in_place
from worker.checkpoint.restore_in_place import restore_in_place
from worker.checkpoint.tensorflow_writer import StepBoundary, TensorFlowWriter
from worker.saving.commit import CheckpointOrigin
from worker.state.state_file import Position

pytestmark = pytest.mark.tensorflow

STATE_MB = 300
KINDS = (tf.float32, tf.bfloat16, tf.float64, tf.int64, tf.uint8, tf.bool, tf.uint16)


def program(seed: int) -> tuple[tf.train.Checkpoint, list[tf.Variable]]:
    """A program with variables of many types and shapes, whose values depend on the seed."""
    drawn = np.random.default_rng(seed)
    shapes: tuple[tuple[int, ...], ...] = ((), (0,), (7,), (3, 5), (1, 9_000))
    variables = [
        tf.Variable(tf.cast(tf.constant(drawn.integers(0, 100, shape).astype("int32")), kind))
        for kind in KINDS
        for shape in shapes
    ]
    return tf.train.Checkpoint(variables=variables), variables


def written(tracked: tf.train.Checkpoint, folder: Path) -> Path:
    origin = CheckpointOrigin("digits", 1, {}, {})
    writer = TensorFlowWriter(tracked, folder, origin, RetentionPolicy(checkpoint_keep=1), 1)
    manifest = writer.commit(writer.capture(StepBoundary(1, Position(), {}, {}), copied=False))
    return folder / str(manifest.name) / layout.PREFIX


def bits(variables: list[Any]) -> list[bytes]:
    return [variable.numpy().tobytes() for variable in variables]


def test_all_types_and_shapes_come_back_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_place, "PIECE_BYTES", 1000)  # several for the larger ones
    before, saved = program(1)
    prefix = written(before, tmp_path)
    after, variables = program(2)
    assert bits(saved) != bits(variables)

    assert restore_in_place(after, prefix, 0)

    assert bits(variables) == bits(saved)
    variables[2].assign_add(tf.ones_like(variables[2]))
    assert bits(variables)[2] != bits(saved)[2], "it is a variable as any"


def shares_memory(how: str, drawn: tf.Tensor) -> tuple[tf.Variable, tf.Variable]:
    """Two variables whose value lies in one place, until one of them is updated."""
    one = tf.Variable(drawn)
    if how == "of one tensor":
        return one, tf.Variable(drawn)
    if how == "made of the other":
        return one, tf.Variable(one)
    other = tf.Variable(tf.zeros_like(drawn))
    other.assign(one)
    return one, other


@pytest.mark.parametrize("how", ["of one tensor", "made of the other", "assigned from the other"])
def test_variables_that_share_their_memory_get_each_its_own(tmp_path: Path, how: str) -> None:
    """As a target network does that begins with the weights of another one."""
    one, other = shares_memory(how, tf.random.uniform((1000,)))
    one.assign(tf.range(1000.0))
    other.assign(-tf.range(1000.0))
    prefix = written(tf.train.Checkpoint(one=one, other=other), tmp_path)
    drawn = tf.random.uniform((1000,))
    again = shares_memory(how, drawn)
    read = again[0].read_value()
    kept = [drawn.numpy().copy(), read.numpy().copy()]

    assert restore_in_place(tf.train.Checkpoint(one=again[0], other=again[1]), prefix, 0)

    assert bits(list(again)) == bits([one, other])
    assert np.array_equal(drawn, kept[0])
    assert np.array_equal(read, kept[1])


def test_a_variable_that_tensorflow_copies_at_each_read_is_restored_too(tmp_path: Path) -> None:
    table = tf.Variable(tf.ones([50, 4]))
    tracked = tf.train.Checkpoint(table=table)
    prefix = written(tracked, tmp_path)
    table.scatter_nd_update([[3]], [[9.0] * 4])  # as training embeddings does it

    assert restore_in_place(tracked, prefix, 0)

    assert table.numpy().tolist() == np.ones((50, 4)).tolist()


@pytest.mark.parametrize(
    "other",
    [
        lambda: tf.train.Checkpoint(a=tf.Variable([5.0, 5.0]), b=tf.Variable([5.0])),
        lambda: tf.train.Checkpoint(b=tf.Variable([5.0, 5.0])),
        lambda: tf.train.Checkpoint(a=tf.Variable([5.0])),
        lambda: tf.train.Checkpoint(a=tf.Variable([5, 5])),
        lambda: tf.train.Checkpoint(a=tf.Variable(["5", "5"])),
        lambda: tf.train.Checkpoint(a=tf.train.Checkpoint(a=tf.Variable([5.0, 5.0]))),
        lambda: tf.train.Checkpoint(a=iter(tf.data.Dataset.range(3))),
    ],
)
def test_whatever_is_not_the_same_program_is_left_to_tensorflow(
    tmp_path: Path, other: Callable[[], tf.train.Checkpoint]
) -> None:
    prefix = written(tf.train.Checkpoint(a=tf.Variable([1.0, 2.0])), tmp_path)
    tracked = other()

    assert not restore_in_place(tracked, prefix, 0)

    views = tf.train.TrackableView(tracked).descendants()
    values = [node.numpy().tolist() for node in views if isinstance(node, tf.Variable)]
    assert all(set(value if isinstance(value, list) else [value]) <= {5.0, b"5", 0} for value in values)


def test_a_small_state_is_left_to_tensorflow(tmp_path: Path) -> None:
    tracked = tf.train.Checkpoint(a=tf.Variable([1.0, 2.0]))

    assert not restore_in_place(tracked, written(tracked, tmp_path))


def test_what_is_damaged_after_it_was_proven_is_found(tmp_path: Path) -> None:
    tracked = tf.train.Checkpoint(a=tf.Variable(tf.ones([1000])))
    prefix = written(tracked, tmp_path)
    data = next(prefix.parent.glob("*.data-*"))
    content = data.read_bytes()
    at = content.index(np.ones(1000, np.float32).tobytes())
    data.write_bytes(content[:at] + b"\xff" + content[at + 1 :])

    with pytest.raises(OSError, match="checksum"):
        restore_in_place(tracked, prefix, 0)


MEASURE = """
import sys
from pathlib import Path

import tensorflow as tf

from supervisor.protocol.checkpoints.retention import RetentionPolicy
from worker.checkpoint.restore import restore_checkpoint
from worker.checkpoint.tensorflow_writer import StepBoundary, TensorFlowWriter
from worker.saving.commit import CheckpointOrigin
from worker.state.state_file import Position

def memory(field):
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) / 1024

tracked = tf.train.Checkpoint(table=tf.Variable(tf.ones([int(sys.argv[2]) * 2_500, 100])))
writer = TensorFlowWriter(tracked, Path(sys.argv[1]), CheckpointOrigin("job", 1, {}, {}), RetentionPolicy(), 1)
manifest = writer.commit(writer.capture(StepBoundary(1, Position(), {}, {}), False))
before = memory("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
restore_checkpoint(tracked, Path(sys.argv[1]) / str(manifest.name), 1)
print((memory("VmHWM") - before) / int(sys.argv[2]))
"""


@pytest.mark.integration
@pytest.mark.slow
def test_the_restore_of_a_large_state_holds_it_once(tmp_path: Path) -> None:
    """What the peak of memory rises by, as a share of the state: TensorFlow's own way takes almost two."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MEASURE, tmp_path, str(STATE_MB)]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)

    assert float(ran.stdout) < 0.15
