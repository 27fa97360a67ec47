"""Settings of Keras' objects that a loop changes are named, unless each pass sets them before its step."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.worker.checks.watch.test_step_watch import DATA, Run
from worker.checks.findings import Finding
from worker.checks.watch.step_watch import StepWatch
from worker.state import dataset_parts
from worker.state.run_state import RunState

pytestmark = pytest.mark.tensorflow


def model_of() -> tf.keras.Model:
    layers = tf.keras.layers
    return tf.keras.Sequential([tf.keras.Input((2,)), layers.Dense(2, name="dense"), layers.Dropout(0.5, name="drop")])


def setting_changed_in_the_tail(run: Run) -> None:
    model = model_of()
    for _epoch in run.epochs(3):
        for batch in run.batches(DATA):
            model(tf.ones((1, 2)), training=True)
            run.step_done(loss=batch)
        model.get_layer("drop").rate *= 0.5


def layer_made_trainable_once(run: Run) -> None:
    model = model_of()
    model.get_layer("dense").trainable = False
    for epoch in run.epochs(3):
        if epoch == 1:
            model.get_layer("dense").trainable = True
        for batch in run.batches(DATA):
            model(tf.ones((1, 2)), training=True)
            run.step_done(loss=batch)


def momentum_of_an_optimizer(run: Run) -> None:
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.5)
    weight = tf.Variable(1.0)
    for batch in run.batches(DATA):
        optimizer.apply_gradients([(tf.constant(1.0), weight)])
        optimizer.momentum += 0.1
        run.step_done(loss=batch)


def regularizer_of_a_layer(run: Run) -> None:
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_regularizer="l2", name="dense")])
    for batch in run.batches(DATA):
        model(tf.ones((1, 2)))
        model.get_layer("dense").kernel_regularizer.l2 *= 0.9
        run.step_done(loss=batch)


class Falling(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Its factor is the script's to change."""

    factor = 1.0

    def __call__(self, step: object) -> float:
        return 0.1 * self.factor


def schedule_of_an_optimizer(run: Run) -> None:
    optimizer = tf.keras.optimizers.SGD(Falling())
    for batch in run.batches(DATA):
        optimizer._learning_rate.factor *= 0.9
        run.step_done(loss=batch)


def set_in_each_epoch(run: Run) -> None:
    model = model_of()
    for epoch in run.epochs(3):
        model.get_layer("drop").rate = 0.5 / (epoch + 1)
        for layer in model.layers:
            layer.trainable = epoch > 0
        if epoch >= 2:
            model.get_layer("dense").use_bias = False
        for batch in run.batches(DATA):
            model(tf.ones((1, 2)), training=True)
            run.step_done(loss=batch)


def changed_for_a_part_of_each_step(run: Run) -> None:
    model = model_of()
    for batch in run.batches(DATA):
        model.trainable = False
        model(tf.ones((1, 2)), training=False)
        model.trainable = True
        run.step_done(loss=batch)


def callback_that_the_loop_calls(run: Run) -> None:
    plateau = tf.keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=9)
    plateau.set_model(model := model_of())
    model.compile("sgd", "mse")
    plateau.on_train_begin()
    for epoch in run.epochs(3):
        for batch in run.batches(DATA):
            run.step_done(loss=batch)
        plateau.on_epoch_end(epoch, {"loss": 1.0})


def callbacks_in_a_list(run: Run) -> None:
    callbacks = tf.keras.callbacks.CallbackList(
        [tf.keras.callbacks.EarlyStopping("loss", patience=9)], add_history=False, add_progbar=False, model=model_of()
    )
    callbacks.on_train_begin()
    for epoch in run.epochs(3):
        for batch in run.batches(DATA):
            run.step_done(loss=batch)
        callbacks.on_epoch_end(epoch, {"loss": 1.0})


@pytest.mark.parametrize(
    ("loop", "named"),
    [(callback_that_the_loop_calls, ["plateau"]), (callbacks_in_a_list, ["callbacks.callbacks[0]"])],
)
def test_callback_of_keras_that_a_loop_of_the_script_calls_is_named(
    loop: Callable[[Run], None], named: list[str]
) -> None:
    run = Run()

    loop(run)

    assert run.named == named


class Stateful(tf.keras.Model):
    """Carries values under names for which Keras has a use elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.state = tf.zeros(2)
        self.mask = np.ones(2)
        self.max = 0.0
        self.history: list[float] = []

    def advance(self, number: float) -> tf.Tensor:
        self.state = 0.5 * self.state + number
        self.mask *= 0.5
        self.max = max(self.max, number)
        self.history.append(number)
        return self.state * self.mask * self.max * self.history[0]


def test_values_of_a_model_of_the_script_under_names_that_keras_uses_are_named() -> None:
    model, run = Stateful(), Run()

    for batch in run.batches(DATA):
        run.step_done(loss=model.advance(batch))

    assert set(run.named) == {"model.state", "model.mask", "model.max", "model.history"}


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (setting_changed_in_the_tail, {"model.drop.rate"}),
        (layer_made_trainable_once, {"model.dense.trainable"}),
        (momentum_of_an_optimizer, {"optimizer.momentum"}),
        (regularizer_of_a_layer, {"model.dense.kernel_regularizer.l2"}),
        (schedule_of_an_optimizer, {"optimizer.learning_rate.factor"}),
        (set_in_each_epoch, set()),
        (changed_for_a_part_of_each_step, set()),
    ],
)
def test_setting_that_a_loop_changes_is_named(loop: Callable[[Run], None], named: set[str]) -> None:
    run = Run()

    loop(run)

    assert {name for name in run.named if name.startswith(("model.", "optimizer."))} == named


def test_tensor_of_a_pass_whose_memory_the_next_one_gets_is_not_named(tmp_path: Path) -> None:
    script, run = tmp_path / "train.py", Run()
    script.write_text(
        "for number in run.batches(range(40)):\n"
        "    loss = tf.constant(float(number))\n"
        "    run.step_done(loss=loss)\n"
        "    assert loss.shape == ()\n"
    )

    runpy.run_path(str(script), {"run": run, "tf": tf})

    assert run.named == []


def test_parts_of_a_model_that_grow_are_not_to_be_put_into_the_state() -> None:
    blocks, found = [tf.keras.layers.Dense(2)], list[Finding]()
    watch = StepWatch(lambda kept: None, (), RunState())

    for step in range(3):
        blocks.append(tf.keras.layers.Dense(2))
        found += watch.look(step, 0, sys._getframe())
    watch.close()

    (finding,) = [finding for finding in found if finding.name.startswith("blocks ")]
    assert "make it whole before the run" in finding.remedy


def test_passes_over_a_shuffled_dataset_that_the_run_does_not_read_are_named() -> None:
    assert dataset_parts  # counts them
    shuffled, ordered = tf.data.Dataset.range(3).shuffle(3, seed=1), tf.data.Dataset.range(3)
    run = Run()

    for _ in run.epochs(3):
        total = sum(int(number) for data in (shuffled, ordered) for number in data)
        run.step_done(total=total)

    assert run.named == ["shuffled"]


def test_sparse_and_ragged_tensors_that_a_loop_carries_are_named() -> None:
    sparse, ragged, holder = tf.sparse.eye(2), tf.ragged.constant([[1.0], []]), SimpleNamespace(ragged=None)
    run = Run()

    for _ in run.epochs(3):
        sparse, ragged = tf.sparse.add(sparse, sparse), ragged * 2.0
        holder.ragged = ragged if holder.ragged is None else holder.ragged + ragged
        made_anew = tf.sparse.add(sparse, sparse)
        run.step_done(total=tf.sparse.reduce_sum(made_anew))

    assert run.named == ["ragged", "sparse", "holder.ragged"]


def test_array_of_tensors_that_a_loop_writes_is_named() -> None:
    losses = tf.TensorArray(tf.float32, size=3, clear_after_read=False)
    run = Run()

    for epoch in run.epochs(3):
        losses = losses.write(epoch, float(epoch))
        run.step_done()

    assert run.named == ["losses"]


def test_loss_that_a_later_epoch_takes_from_a_dict_is_named() -> None:
    losses = {"first": tf.keras.losses.MeanSquaredError(), "later": tf.keras.losses.MeanAbsoluteError()}
    loss_of = losses["first"]
    run = Run()

    for epoch in run.epochs(3):
        if epoch == 1:
            loss_of = losses["later"]
        for batch in run.batches(DATA):
            run.step_done(loss=loss_of([batch], [0.0]))

    assert run.named == ["loss_of"]
