"""`fit` trains models as tutorials write them: a GAN, a VAE, two inputs and outputs, parts that are built."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from supervisor.protocol.wire.exits import PERMANENT_EXITS
from supervisor.protocol.wire.launch import Launch
from tests.worker.keras.test_fit import StopsAt, same_weights
from worker.keras import fit

pytestmark = pytest.mark.tensorflow
layers = tf.keras.layers
NUMBERS = np.random.default_rng(0)
IMAGES = NUMBERS.normal(size=(20, 4)).astype("float32")


@pytest.fixture(autouse=True)
def _new_attempt(begin: Callable[[Launch], None]) -> None:
    begin(Launch())


def stack(inputs: int, outputs: int) -> Any:
    return tf.keras.Sequential([tf.keras.Input((inputs,)), layers.Dense(8, activation="relu"), layers.Dense(outputs)])


class GAN(tf.keras.Model):  # type: ignore[misc]
    """Two models, two optimizers, metrics as attributes, and a generator of its own for the noise."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = stack(4, 1)
        self.generator = stack(2, 4)
        self.seeds = tf.keras.random.SeedGenerator(5)
        self.d_loss_tracker = tf.keras.metrics.Mean(name="d_loss")
        self.g_loss_tracker = tf.keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_tracker, self.g_loss_tracker]

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer
        self.loss_fn = loss_fn

    def train_step(self, real: Any) -> Any:
        count = tf.shape(real)[0]
        noise = tf.keras.random.normal((count, 2), seed=self.seeds)
        both = tf.concat([self.generator(noise), real], axis=0)
        labels = tf.concat([tf.ones((count, 1)), tf.zeros((count, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            g_loss = self.loss_fn(tf.zeros((count, 1)), self.discriminator(self.generator(noise)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
        self.d_loss_tracker.update_state(d_loss)
        self.g_loss_tracker.update_state(g_loss)
        return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}


def gan() -> tuple[Any, dict[str, Any]]:
    model = GAN()
    loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-2), tf.keras.optimizers.Adam(2e-2), loss)
    return model, {"x": IMAGES}


class Sampling(layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = tf.keras.random.SeedGenerator(1337)

    def call(self, inputs: Any) -> Any:
        mean, log_var = inputs
        return mean + tf.exp(0.5 * log_var) * tf.keras.random.normal(tf.shape(mean), seed=self.seed_generator)


class VAE(tf.keras.Model):  # type: ignore[misc]
    """As in Keras' example: an encoder and a decoder that are built, a train step of its own, no call."""

    def __init__(self) -> None:
        super().__init__()
        inputs = tf.keras.Input((4,))
        hidden = layers.Dense(8, activation="relu")(inputs)
        mean, log_var = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
        self.encoder = tf.keras.Model(inputs, [mean, log_var, Sampling()([mean, log_var])])
        self.decoder = stack(2, 4)
        self.total_loss_tracker = tf.keras.metrics.Mean(name="total_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.total_loss_tracker]

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            mean, log_var, z = self.encoder(data)
            distance = tf.reduce_mean(tf.square(data - self.decoder(z)))
            divergence = -0.5 * (1 + log_var - tf.square(mean) - tf.exp(log_var))
            loss = distance + tf.reduce_mean(tf.reduce_sum(divergence, axis=1))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.total_loss_tracker.update_state(loss)
        return {"loss": self.total_loss_tracker.result()}


def vae() -> tuple[Any, dict[str, Any]]:
    model = VAE()
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-2))
    return model, {"x": IMAGES}


def vae_with_a_loss() -> tuple[Any, dict[str, Any]]:
    """Its train step may use the loss by itself; Keras builds it only for a model that can be called."""
    model = VAE()
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-2), loss="mse")
    return model, {"x": IMAGES}


def two_inputs() -> tuple[Any, dict[str, Any]]:
    left, right = tf.keras.Input((4,), name="left"), tf.keras.Input((2,), name="right")
    joined = layers.Dropout(0.3)(layers.concatenate([layers.Dense(3)(left), layers.Dense(3)(right)]))
    outputs = {"size": layers.Dense(1, name="size")(joined), "kind": layers.Dense(3, name="kind")(joined)}
    model = tf.keras.Model({"left": left, "right": right}, outputs)
    losses = {"size": "mse", "kind": tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)}
    model.compile("adam", losses, metrics={"size": ["mae"], "kind": ["accuracy"]})
    x = {"left": IMAGES, "right": IMAGES[:, :2]}
    return model, {"x": x, "y": {"size": IMAGES[:, 0], "kind": np.arange(20) % 3}, "validation_split": 0.2}


class Subclassed(tf.keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = stack(4, 3)
        self.head = stack(3, 1)

    def call(self, inputs: Any) -> Any:
        return self.head(self.body(inputs))


def subclassed() -> tuple[Any, dict[str, Any]]:
    model = Subclassed()
    model.compile("adam", "mse", metrics=["mae"])
    return model, {"x": IMAGES, "y": IMAGES[:, 0]}


@pytest.mark.slow
@pytest.mark.parametrize("stops", [(12,), pytest.param((2, 12), marks=pytest.mark.nightly)], ids=["once", "twice"])
@pytest.mark.parametrize(
    "make",
    [
        gan,
        vae_with_a_loss,
        subclassed,
        *(pytest.param(again, marks=pytest.mark.nightly) for again in (vae, two_inputs)),
    ],
)
def test_models_of_tutorials_end_like_an_undisturbed_run(
    make: Callable[[], tuple[Any, dict[str, Any]]],
    stops: tuple[int, ...],
    tmp_path: Path,
    begin: Callable[[Launch], None],
) -> None:
    def trained(folder: str, *callbacks: Any) -> Any:
        tf.keras.utils.set_random_seed(1)
        model, given = make()
        fit(model, **given, batch_size=4, epochs=2, callbacks=list(callbacks), verbose=0, directory=tmp_path / folder,
            interval="1 steps", strict=True)  # fmt: skip
        return model

    undisturbed = trained("calm")

    class Stops(StopsAt):
        """Counts the batches itself: several optimizers may count them."""

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == self.step % 10 and self.epoch == self.step // 10:
                raise LookupError("on purpose")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

    for stop in stops:
        with pytest.raises(LookupError):
            trained("rough", Stops(stop))
        begin(Launch())
    disturbed = trained("rough")

    assert disturbed.history.history == undisturbed.history.history
    assert same_weights(disturbed, undisturbed)
    assert undisturbed.history.epoch == [0, 1]


class WithUnbuiltPart(tf.keras.Model):  # type: ignore[misc]
    """`reads_values`: its call needs more than types and shapes."""

    def __init__(self, reads_values: bool = False) -> None:
        super().__init__()
        self.head = layers.Dense(1)
        self.reads_values = reads_values

    def call(self, inputs: Any) -> Any:
        if self.reads_values:
            inputs = inputs * float(np.asarray(inputs).mean())
        return self.head(inputs)


@pytest.mark.filterwarnings(r"ignore:.build\(\). was called on layer")
@pytest.mark.parametrize("is_marked", [False, True], ids=["not built", "marked as built by build()"])
def test_model_without_an_input_is_built_from_its_data(
    is_marked: bool, tmp_path: Path, begin: Callable[[Launch], None]
) -> None:
    def trained(folder: str, *callbacks: Any) -> Any:
        tf.keras.utils.set_random_seed(3)
        model = WithUnbuiltPart()
        if is_marked:
            model.build((None, IMAGES.shape[1]))
        model.compile("adam", "mse", metrics=["mae"])
        given = {"batch_size": 8, "epochs": 2, "callbacks": list(callbacks), "verbose": 0}
        return fit(model, IMAGES, IMAGES[:, 0], directory=tmp_path / folder, interval="1 steps", **given)

    class Stops(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                raise LookupError("on purpose")

    undisturbed = trained("smooth")
    begin(Launch())
    with pytest.raises(LookupError):
        trained("rough", Stops())
    begin(Launch())
    disturbed = trained("rough")

    assert disturbed.history == undisturbed.history
    assert same_weights(disturbed.model, undisturbed.model)


def test_model_that_can_not_be_built_is_refused_with_what_to_call(tmp_path: Path) -> None:
    model = WithUnbuiltPart(reads_values=True)
    model.compile("adam", "mse")

    with pytest.raises(ValueError, match=r"cannot build model .* call it once, as in model\(x\)"):
        fit(model, IMAGES, IMAGES[:, 0], directory=tmp_path)


def test_a_second_fit_whose_optimizer_does_not_fit_the_end_of_the_first_says_how_to_train_in_parts(
    tmp_path: Path, begin: Callable[[Launch], None], capfd: pytest.CaptureFixture[str]
) -> None:
    base = tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(8)])
    base.trainable = False
    model = tf.keras.Sequential([base, layers.Dense(1)])
    model.compile("adam", "mse")
    fit(model, IMAGES, IMAGES[:, :1], batch_size=4, epochs=1, verbose=0, directory=tmp_path)
    base.trainable = True
    model.compile(tf.keras.optimizers.Adam(1e-5), "mse")

    with pytest.raises(SystemExit) as ended:
        fit(model, IMAGES, IMAGES[:, :1], batch_size=4, epochs=2, verbose=0, directory=tmp_path)

    assert ended.value.code in PERMANENT_EXITS
    said = capfd.readouterr().err
    assert "cannot begin the script's next run in the checkpoint directory of the one before it" in said
    assert "run.epochs" not in said
    assert "a job of its own" in said
