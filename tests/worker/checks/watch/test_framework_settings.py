"""Settings of Keras' objects that a loop changes are named, unless each pass sets them before its step."""

from collections.abc import Callable

import pytest
import tensorflow as tf

from tests.worker.checks.watch.test_step_watch import DATA, Run

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


@pytest.mark.parametrize(
    ("loop", "named"),
    [
        (setting_changed_in_the_tail, {"model.drop.rate"}),
        (layer_made_trainable_once, {"model.dense.trainable"}),
        (momentum_of_an_optimizer, {"optimizer.momentum"}),
        (set_in_each_epoch, set()),
        (changed_for_a_part_of_each_step, set()),
    ],
)
def test_setting_that_a_loop_changes_is_named(loop: Callable[[Run], None], named: set[str]) -> None:
    run = Run()

    loop(run)

    assert {name for name in run.named if name.startswith(("model.", "optimizer."))} == named
