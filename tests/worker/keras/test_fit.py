"""`model.fit` as a job: killed anywhere, it ends with the same bits, history and callbacks."""

import random
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import worker
from supervisor.protocol.checkpoints import selection
from supervisor.protocol.wire.launch import Interval, Launch
from supervisor.protocol.wire.messages import Go, Progress
from tests.worker import training
from tests.worker.run.test_multiworker import (
    CHILDREN,
    Start,
    read_until,
    start,
)
from worker.keras import fit
from worker.state.state_file import Position

pytestmark = pytest.mark.tensorflow
__all__ = ["start"]
EPOCHS = 5  # of 6 steps


@pytest.mark.nightly  # test_fit_arguments.py kills at the edges of steps, epochs and validations
@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fit_killed_within_epochs_ends_like_an_undisturbed_one(start: Start, tmp_path: Path) -> None:
    def fitting(folder: str, *hold_at: int) -> subprocess.Popen[str]:
        launch = Launch(deterministic=True, checkpoint_dir=tmp_path / folder, checkpoint_interval=Interval(steps=4))
        return start(CHILDREN / "fitting.py", EPOCHS, *hold_at, launch=launch)

    undisturbed = read_until(fitting("a"), "hash")

    lost_at = [random.randint(6, 13), random.randint(16, 23)]
    for step in lost_at:
        process = fitting("b", step)
        read_until(process, f"batch {step} ")
        process.send_signal(signal.SIGKILL)
        process.wait()
    disturbed = read_until(fitting("b"), "hash")

    assert disturbed == undisturbed, f"killed at {lost_at}"


def compiled(strategy: Any, **options: Any) -> Any:
    with strategy.scope():
        model = training.build(strategy).model
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2, **options.pop("adam", {})), loss, **options)
    return model


class Seen(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Records the calls that a user's callback gets; `count` is its state."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.count = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self.heard.append("begin")

    def on_train_end(self, logs: Any = None) -> None:
        self.heard.append("end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.heard.append(f"epoch {epoch}")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.heard.append(f"batch {batch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.count += 1


def test_callbacks_see_one_training_with_the_batch_numbers_of_the_epoch(two_replicas: Any, tmp_path: Path) -> None:
    first = Seen()
    fit(compiled(two_replicas), training.data(), epochs=2, callbacks=[first], strategy=two_replicas, verbose=0)

    assert first.heard == [
        "begin", "epoch 0", *(f"batch {number}" for number in range(6)),
        "epoch 1", *(f"batch {number}" for number in range(6)), "end",
    ]  # fmt: skip


@pytest.mark.slow
def test_begin_and_end_of_a_validation_are_reported(two_replicas: Any, tmp_path: Path, begin: Any, daemon: Any) -> None:
    begin(Launch(control=daemon.control(), checkpoint_dir=tmp_path))
    daemon.send(Go(1, restore=None))

    class Looks(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
            heard.append(daemon.wait_for(Progress, among=lambda said: said.section == "evaluation").step)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            heard.append(daemon.wait_for(Progress, among=lambda said: said.section is None and said.step >= 1).step)

    heard: list[int] = []
    held_out = np.zeros([4, 8, 8, 1], np.float32), np.zeros([4], np.int64)
    fit(
        compiled(two_replicas), training.data(), epochs=1, callbacks=[Looks()], strategy=two_replicas, verbose=0,
        validation_data=held_out,
    )  # fmt: skip

    assert len(heard) == 2


class StopsAt(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Fails in the middle of an epoch."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations.numpy()) == self.step:
            raise LookupError("on purpose")


@pytest.mark.slow
def test_interrupted_epoch_resumes_at_its_batch_with_history_and_state(two_replicas: Any, tmp_path: Path) -> None:
    def train(*callbacks: Any) -> Any:
        model = compiled(two_replicas, metrics=["accuracy"])
        return fit(
            model, training.data(), epochs=2, callbacks=callbacks, strategy=two_replicas, verbose=0,
            directory=tmp_path / "c", interval="4 steps",
        )  # fmt: skip

    with pytest.raises(LookupError):
        train(Seen(), StopsAt(9))
    second = Seen()
    history = train(second, StopsAt(-1))

    batches = [f"batch {number}" for number in range(6)]
    assert second.heard == ["begin", "epoch 0", *batches, "epoch 1", *batches, "end"], "of both processes, each once"
    assert second.count == 2
    assert history.epoch == [0, 1]
    assert len(history.history["accuracy"]) == 2


@pytest.mark.slow
def test_derived_attributes_of_callbacks_are_not_restored(two_replicas: Any, tmp_path: Path) -> None:
    def train(plateau: Any, step: int) -> None:
        fit(
            compiled(two_replicas), training.data(), epochs=3, callbacks=[plateau, StopsAt(step)],
            strategy=two_replicas, verbose=0, directory=tmp_path, interval="4 steps",
        )  # fmt: skip

    first, second = (tf.keras.callbacks.ReduceLROnPlateau("loss", min_delta=0.25) for _ in range(2))
    with pytest.raises(LookupError):
        train(first, 9)
    train(second, -1)

    assert first.min_delta == second.min_delta == -0.25, "Keras turns the sign, once"


def test_finished_training_is_not_trained_again(two_replicas: Any, tmp_path: Path) -> None:
    def train() -> tuple[Seen, Any]:
        seen = Seen()
        history = fit(
            compiled(two_replicas), training.data(), epochs=1, callbacks=[seen], strategy=two_replicas, verbose=0,
            directory=tmp_path,
        )  # fmt: skip
        return seen, history

    heard, first = train()
    saved = selection.committed_checkpoints(tmp_path)
    seen, again = train()

    assert seen.heard == [*heard.heard, "end"], "what the first process heard, and the end"
    assert again.history == first.history
    assert saved[0].step == 6
    assert selection.committed_checkpoints(tmp_path) == saved


def untuned() -> tf.data.Options:
    """Closing an iterator waits for the tuning."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def test_a_tf_dataset_is_one_epoch(two_replicas: Any) -> None:
    dataset = training.data().open(Position()).take(3).with_options(untuned())
    history = fit(compiled(two_replicas), dataset, epochs=2, strategy=two_replicas, verbose=0)

    assert history.epoch == [0, 1]
    assert int(history.model.optimizer.iterations.numpy()) == 6


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda model: model, {"batch_size": 3}, "cannot fit with batch_size"),
        (lambda model: tf.keras.Sequential(), {}, "not compiled"),
    ],
)
def test_fit_refuses_data_that_can_not_be_resumed(
    make: Callable[[Any], Any], options: dict[str, Any], words: str, two_replicas: Any
) -> None:
    with pytest.raises(ValueError, match=words):
        fit(make(compiled(two_replicas)), training.data(), epochs=1, **options)


def test_steps_per_execution_counts_each_step_and_ends_with_the_same_bits(tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()

    def fitted(folder: str, stop: tuple[Any, ...] = ()) -> Any:
        tf.keras.utils.set_random_seed(1)
        model = compiled(strategy, steps_per_execution=4)  # of 6 steps an epoch: the last two are fewer
        fit(
            model, training.data(), epochs=3, callbacks=stop, strategy=strategy, verbose=0, directory=tmp_path / folder,
            interval="2 steps",
        )  # fmt: skip
        return model

    undisturbed = fitted("calm")
    with pytest.raises(LookupError):
        fitted("rough", (StopsAt(10),))
    half_way = selection.committed_checkpoints(tmp_path / "rough")[0].step
    disturbed = fitted("rough")

    assert selection.committed_checkpoints(tmp_path / "calm")[0].step == 18
    assert half_way == 10, "after the first four steps of the second epoch"
    assert undisturbed.history.history == disturbed.history.history
    assert same_weights(undisturbed, disturbed)


@pytest.mark.slow
def test_weights_are_replaced_by_their_averages_at_the_end_only(tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()
    adam = {"use_ema": True, "ema_momentum": 0.5}

    def fitted(folder: str, stop: tuple[Any, ...] = ()) -> Any:
        tf.keras.utils.set_random_seed(1)
        model = compiled(strategy, adam=adam)
        fit(
            model, training.data(), epochs=3, callbacks=stop, strategy=strategy, verbose=0, directory=tmp_path / folder,
            interval="2 steps",
        )  # fmt: skip
        return model

    undisturbed = fitted("calm")
    with pytest.raises(LookupError):
        fitted("rough", (StopsAt(9),))
    disturbed = fitted("rough")
    again = fitted("rough")
    tf.keras.utils.set_random_seed(1)
    by_keras = compiled(strategy, adam=adam)
    by_keras.fit(
        training.data().open(Position()).take(18).with_options(untuned()),
        epochs=3,
        steps_per_epoch=6,
        verbose=0,
        shuffle=False,
    )

    assert same_weights(undisturbed, disturbed)
    assert same_weights(undisturbed, again), "a restart after the end averages nothing twice"
    assert same_weights(undisturbed, by_keras)
    assert any(
        (variable.numpy() != average.numpy()).any()
        for variable, average in zip(
            compiled(strategy, adam=adam).trainable_variables, undisturbed.trainable_variables, strict=True
        )
    )


@pytest.mark.slow
def test_epoch_without_a_batch_of_the_new_size_is_ended(two_replicas: Any, tmp_path: Path) -> None:
    def with_batches_of(size: int) -> worker.Examples:
        numbers = np.random.default_rng(0)
        images = numbers.normal(size=(96, 8, 8, 1)).astype("float32")
        return worker.Examples(images, numbers.integers(0, 10, 96), batch_size=size, seed=1)

    validation = training.data().open(Position()).take(1).with_options(untuned())
    keys = {"strategy": two_replicas, "verbose": 0, "directory": tmp_path, "interval": "1 steps"}
    with pytest.raises(LookupError):
        fit(compiled(two_replicas), with_batches_of(16), epochs=3, callbacks=[StopsAt(11)], **keys)
    seen = Seen()
    history = fit(
        compiled(two_replicas), with_batches_of(64), epochs=3, callbacks=[seen], validation_data=validation, **keys
    )

    assert history.epoch == [0, 1, 2]
    assert len(history.history["loss"]) == 3
    assert len(history.history["val_loss"]) == 2
    assert seen.heard == ["begin", "epoch 2", "batch 0", "end"], "16 examples of the second epoch were left"
    assert seen.count == 2


def augmenting() -> Any:
    """Random layers, with those for images in a model inside the model."""
    layers = tf.keras.layers
    images = [layers.RandomFlip("horizontal"), layers.RandomRotation(0.2), layers.GaussianNoise(0.1)]
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.Sequential([tf.keras.Input((8, 8, 1)), *images]),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(10, dtype="float32"),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_random_augmentation_and_mixed_precision_end_like_an_undisturbed_run(policy: str, tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()

    def fitted(folder: str, seed: int, *stop: Any) -> Any:
        tf.keras.utils.set_random_seed(seed)
        tf.keras.mixed_precision.set_global_policy(policy)
        try:
            model = augmenting()
        finally:
            tf.keras.mixed_precision.set_global_policy("float32")
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
        fit(
            model, training.data(), epochs=2, callbacks=stop, strategy=strategy, verbose=0,
            directory=tmp_path / folder, interval="4 steps",
        )  # fmt: skip
        return model

    undisturbed = fitted("calm", 1)
    with pytest.raises(LookupError):
        fitted("rough", 1, StopsAt(9))
    disturbed = fitted("rough", 2)

    assert undisturbed.layers[1].compute_dtype == policy.removeprefix("mixed_")
    assert disturbed.history.history == undisturbed.history.history
    assert same_weights(disturbed, undisturbed)
    assert sum(variable.name == "seed_generator_state" for variable in disturbed.variables) == 4


def same_weights(one: Any, other: Any) -> bool:
    return all((a.numpy() == b.numpy()).all() for a, b in zip(one.variables, other.variables, strict=True))


def test_steps_per_execution_counts_steps_of_an_epoch_of_unknown_length(tmp_path: Path) -> None:
    strategy = tf.distribute.get_strategy()
    dataset = training.data().open(Position()).take(6).filter(lambda images, labels: True).with_options(untuned())
    model = compiled(strategy, steps_per_execution=4)
    fit(model, dataset, epochs=2, strategy=strategy, verbose=0, directory=tmp_path)

    assert int(model.optimizer.iterations.numpy()) == 12
    assert selection.committed_checkpoints(tmp_path)[0].step == 12
