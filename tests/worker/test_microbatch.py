"""A batch in parts makes the same step with less memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import Failed, Go
from tests.worker import training
from tests.worker.daemon_end import DaemonEnd
from worker import loop, microbatch
from worker.data.batches import BatchReader
from worker.process.reporting import is_out_of_memory
from worker.state.state_file import Position

pytestmark = pytest.mark.tensorflow
Begin = Callable[[Launch], None]


def described() -> loop.Training:
    """A model whose step depends only on the examples: no dropout, no batch statistics."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((8, 8, 1)), layers.Conv2D(8, 3), layers.Flatten(), layers.Dense(10)])
    return loop.Training(
        model=model,
        optimizer=tf.keras.optimizers.SGD(1e-2, momentum=0.9),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
        data=training.data(),
        total_steps=6,
    )


@pytest.mark.parametrize("split", [2, 3, 64])
def test_microbatches_change_the_steps_of_the_loop_by_rounding_only(two_replicas: Any, split: int) -> None:
    with two_replicas.scope():
        whole = described()
        divided = described()
        divided.model.set_weights(whole.model.get_weights())
        for each in (whole, divided):
            each.optimizer.build(each.model.trainable_variables)  # as worker.Run does
    batches = list(BatchReader(whole.data, two_replicas, Position()).rest_of_epoch())
    losses, norms = [], []
    for each, parts in ((whole, 1), (divided, split)):
        step = loop.train_step(each, two_replicas, parts)
        found = [step(*batch) for batch in batches]
        losses.append([np.mean([float(one) for one in figures["loss"].values]) for figures in found])
        norms.append([[float(one) for one in figures["gradient_norm"].values] for figures in found])

    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    np.testing.assert_allclose(norms[1], norms[0], rtol=1e-4)
    for one, other in zip(whole.model.get_weights(), divided.model.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("parts", [1, 2])
def test_loss_may_branch_over_tensors(two_replicas: Any, parts: int) -> None:
    def loss(labels: Any, predictions: Any) -> Any:
        per_example = tf.reduce_mean(predictions, axis=1) * 0.0
        if tf.reduce_sum(tf.cast(labels, tf.float32)) > -1.0:  # Python's `if`, which AutoGraph converts
            per_example = per_example + 3.0
        return per_example

    with two_replicas.scope():
        branching = replace(described(), loss=loss)
        branching.optimizer.build(branching.model.trainable_variables)
    step = loop.train_step(branching, two_replicas, parts)
    batch = next(BatchReader(branching.data, two_replicas, Position()).rest_of_epoch())

    assert [float(value) for value in step(*batch)["loss"].values] == [3.0, 3.0]


def test_gradient_norm_shows_what_the_loss_hides(two_replicas: Any) -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros([2, 1], np.float32)])
    optimizer = tf.keras.optimizers.SGD(0.0)
    optimizer.build(model.trainable_variables)
    inputs, labels = np.array([[3.0, 4.0]], np.float32), np.zeros([1, 1], np.float32)

    def figures(loss: Any) -> Any:
        return loop.train_step(loop.Training(model, optimizer, loss, None, 1), strategy)(inputs, labels)

    plain = figures(lambda labels, predictions: predictions - labels)
    hides = figures(lambda labels, predictions: tf.sqrt(tf.abs(predictions - labels)))  # 0, and its slope is not

    assert float(plain["gradient_norm"]) == pytest.approx(5.0)
    assert float(hides["loss"]) == 0.0
    assert not np.isfinite(float(hides["gradient_norm"]))


def test_shares_add_up_and_no_example_is_lost() -> None:
    batch = (tf.range(10), tf.range(10) * 2)

    parts = list(microbatch.parts_of(batch, 4))

    assert [len(inputs) for (inputs, _), _ in parts] == [2, 3, 2, 3]
    assert tf.concat([labels for (_, labels), _ in parts], 0).numpy().tolist() == list(range(0, 20, 2))
    assert sum(share for _, share in parts) == pytest.approx(1.0)


def test_microbatches_are_at_most_as_many_as_examples() -> None:
    assert [share for _, share in microbatch.parts_of(tf.range(3), 8)] == [1 / 3] * 3


def test_a_missing_gradient_stays_missing() -> None:
    total, missing = microbatch.accumulate(lambda part: (tf.reduce_sum(part), None), tf.range(6), 3)

    assert (int(total), missing) == (15, None)


def test_run_divides_its_batches_or_is_told_that_it_should(
    daemon: DaemonEnd, begin: Begin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(
        Launch(
            control=daemon.control(),
            checkpoint_dir=tmp_path / "c",
            checkpoint_interval=Interval(steps=5),
            microbatches=2,
        )
    )
    daemon.send(Go(1, None))

    with worker.Run(tf.train.Checkpoint(weight=tf.Variable(1.0))) as run:
        run.step_done(loss=1.0)
        sizes = [len(part) for part, _ in run.microbatches(tf.range(6))]

    assert sizes == [3, 3]
    assert "does not divide its batches into 2 parts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[9,9]"), True),
        (tf.errors.ResourceExhaustedError(None, None, "/c/x.tmp; No space left on device"), False),
        (MemoryError(), True),
        (ValueError("no"), False),
    ],
)
def test_lack_of_memory_is_recognised_by_the_exception(error: Exception, is_it: bool) -> None:
    wrapped = RuntimeError("in the loop")
    wrapped.__cause__ = error

    assert is_out_of_memory(error) is is_out_of_memory(wrapped) is is_it


@pytest.mark.slow  # TensorFlow tries for ten seconds
def test_lack_of_memory_in_tensorflow_is_reported(daemon: DaemonEnd, begin: Begin, tmp_path: Path) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path / "c", checkpoint_interval=Interval(steps=5)))
    daemon.send(Go(1, None))

    with (
        pytest.raises(tf.errors.ResourceExhaustedError),
        worker.Run(tf.train.Checkpoint(weight=tf.Variable(1.0))) as run,
    ):
        run.step_done(loss=1.0)
        tf.zeros([1 << 24, 1 << 24])

    assert daemon.wait_for(Failed).out_of_memory


@pytest.mark.timeout(30)
def test_error_that_is_its_own_cause_is_checked_once() -> None:
    error = ValueError("raised from itself")
    error.__cause__ = error

    assert not is_out_of_memory(error)
