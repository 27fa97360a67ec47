"""Fits small models with several workers, as one of them: FOLDER ROW... [--kill RANK PLACE].

Each row is a set of arguments of `fit`, in a folder of its own (FOLDER/ROW), where each worker writes a digest of all
that it ends with. With --kill, the worker of that rank kills itself at a place: `batch 4` (the fourth step is
computed), `validation 0`, `begin 1` and `end 1` (of an epoch), `save fsync ckpt.index` (in its first save).
The row `loop` trains what `Examples` does, in a loop of its own; `refused` writes what `fit` says of arguments that it
refuses, to FOLDER/refused-RANK. PAUSE: seconds that each step of `fit` takes longer.
"""

import hashlib
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import worker

arguments, _, kill = " ".join(sys.argv[1:]).partition(" --kill ")
folder, *rows = Path(sys.argv[1]), *arguments.split()[1:]
victim, _, place = kill.partition(" ")
is_exact = rows != ["refused"]  # Keras compiles nothing with XLA then, and all shuffles have seeds
strategy = worker.strategy("multiworker", deterministic=is_exact, directory=folder / "ckpt")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.worker import power_calls  # noqa: E402
from tests.worker.keras.test_fit import untuned  # noqa: E402
from tests.worker.keras.test_fit_arguments import (  # noqa: E402
    COUNT,
    SOURCES,
    DrawsInThreads,
    Sequence,
    X,
    Y,
    pairs,
    regression,
)
from tests.worker.keras.test_fit_arguments import unseeded as unseeded  # noqa: E402
from worker.state import extra_state  # noqa: E402
from worker.state.replica_values import replica_copies  # noqa: E402

rank = strategy.cluster_resolver.task_id if strategy.cluster_resolver is not None else 0  # one that trains alone
EPOCHS = 3
PAUSE_S = float(os.environ.get("PAUSE", "0"))
callbacks = tf.keras.callbacks


def at(here: str) -> None:
    """Ends this process at the place that it is to die at."""
    if here == place and str(rank) == victim:
        os.kill(os.getpid(), signal.SIGKILL)


class Places(callbacks.Callback):  # type: ignore[misc]
    """Passes the places where a test kills."""

    def on_train_begin(self, logs: Any = None) -> None:
        step = int(self.model.optimizer.iterations.numpy())
        print(f"worker {rank} pid {os.getpid()} begins at {step}\n", end="", flush=True)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        at(f"begin {epoch}")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(PAUSE_S)
        at(f"batch {int(self.model.optimizer.iterations.numpy())}")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        at(f"validation {self.epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        at(f"end {epoch}")


class StopsLate(callbacks.Callback):  # type: ignore[misc]
    """Ends training in the middle of an epoch, in the last worker alone."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))
        if len(self.losses) == 15 and rank == strategy.num_replicas_in_sync - 1:
            self.model.stop_training = True


class Stepping(tf.keras.Model):  # type: ignore[misc]
    """Has a step and a metric of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = tf.keras.layers.Dense(1)
        self.mean = tf.keras.metrics.Mean(name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(x)

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True)[:, 0] - y))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.mean.update_state(loss)
        return {"mean": self.mean.result(), "steps": self.optimizer.iterations}

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.mean.update_state(tf.square(self(x)[:, 0] - y))
        return {"mean": self.mean.result()}


def stepping() -> Any:
    model = Stepping()
    model.build((None, 3))
    model.compile("adam")
    return model


def layered() -> Any:
    """Averages of batches, and metrics with a value for each threshold or class."""
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [tf.keras.Input((3,)), layers.Dense(8), layers.BatchNormalization(), layers.GaussianNoise(0.1)]
    )
    model.add(layers.Dense(2, activation="softmax"))
    metrics = ["accuracy", tf.keras.metrics.F1Score(name="f1"), tf.keras.metrics.AUC(name="auc")]
    model.compile(tf.keras.optimizers.Adam(1e-2, use_ema=True), "categorical_crossentropy", metrics=metrics)
    return model


class Seen(tf.keras.metrics.Sum):  # type: ignore[misc]
    """How many examples there were."""

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        super().update_state(tf.ones([tf.shape(y)[0]]))


def branched() -> Any:
    """Two ways through the model, in half precision, with clipped gradients."""
    layers = tf.keras.layers
    x = tf.keras.Input((3,))
    one = layers.Dense(8, dtype="mixed_bfloat16")(layers.Dropout(0.3)(x))
    other = layers.LayerNormalization()(layers.Dense(8, activation="tanh")(x))
    model = tf.keras.Model(x, layers.Dense(1, dtype="float32")(layers.Add()([one, other])))
    model.compile(tf.keras.optimizers.Adam(1e-2, clipnorm=1.0), "mse")
    return model


def of_keras(own: Path) -> list[Any]:
    return [
        callbacks.ModelCheckpoint(own / "best.keras", save_best_only=True),
        callbacks.ModelCheckpoint(own / "each-{epoch}.weights.h5", save_weights_only=True, save_freq=3),
        callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5, min_delta=0.01),
        callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        callbacks.TerminateOnNaN(),
        callbacks.CSVLogger(str(own / "log.csv")),
        callbacks.TensorBoard(str(own / "board"), update_freq=1),
    ]


def examples() -> worker.Examples:
    return worker.Examples(X, Y, batch_size=4, seed=3)


ONE_HOT = np.eye(2, dtype="float32")[np.arange(COUNT) % 2]
OTHERS: dict[str, Any] = {
    "Examples": lambda own: {"x": examples()},
    "of unknown length": lambda own: {"x": pairs().batch(4).filter(lambda x, y: True).with_options(untuned())},
    "of unknown length in steps": lambda own: {
        "x": pairs().repeat().batch(4).filter(lambda x, y: True).with_options(untuned()), "steps_per_epoch": 3,
    },
    "made for each epoch": lambda own: {
        "x": lambda epoch: pairs().shuffle(9, seed=epoch).batch(4).with_options(untuned())
    },
    "callbacks of Keras": lambda own: {
        "x": X, "y": Y, "batch_size": 4, "callbacks": of_keras(own),
        "model": regression(metrics=["mae", Seen(name="seen")]),
    },
    "stopped by one": lambda own: {"x": X, "y": Y, "batch_size": 4, "callbacks": [StopsLate()]},
    "steps of its own": lambda own: {"x": X, "y": Y, "batch_size": 4, "model": stepping()},
    "averages and metrics": lambda own: {  # an average over no rows is no number
        "x": X[:18], "y": ONE_HOT[:18], "batch_size": 6, "model": layered(), "validation_data": (X[:9], ONE_HOT[:9]),
    },
    "eager": lambda own: {  # Keras would divide by the number of rows of a replica that has none
        "x": X[:18], "y": Y[:18], "batch_size": 6, "model": regression(run_eagerly=True),
        "validation_data": (X[:12], Y[:12]), "validation_batch_size": 6,
    },
    "half precision": lambda own: {
        "x": X, "y": Y, "batch_size": 4, "model": branched()
    },
    "seen": lambda own: {"x": X, "y": Y, "batch_size": 6, "model": regression(metrics=[Seen(name="seen")])},
    "validated now and then": lambda own: {
        "x": X, "y": Y, "batch_size": 4, "validation_freq": 2, "validation_batch_size": 5,
    },
}  # fmt: skip


def outside() -> Any:
    """A model that no strategy has made."""
    return regression()


def counted_apart() -> Any:
    apart = tf.keras.metrics.MeanAbsoluteError()
    with strategy.scope():
        return regression(metrics=[apart])


def trained_apart() -> Any:
    model = made()
    model.compile(tf.keras.optimizers.Adam(), "mse")
    return model


def made(**options: Any) -> Any:
    with strategy.scope():
        return regression(**options)


def by_files() -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return pairs().batch(4).with_options(options)


def of_one_rank() -> Any:
    """Batches that each worker makes for itself."""
    yield from ((X[:4] + rank, Y[:4]) for _ in range(6))


class Shuffled(Sequence):
    """Has an order that depends on the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = np.random.default_rng(rank).permutation(COUNT)


ARRAYS = {"x": X, "y": Y, "batch_size": 4}
REFUSED: dict[str, Any] = {
    "a model outside of the scope": lambda: {**ARRAYS, "model": outside()},
    "a metric outside of the scope": lambda: {**ARRAYS, "model": counted_apart()},
    "an optimizer outside of the scope": lambda: {**ARRAYS, "model": trained_apart()},
    "XLA": lambda: {**ARRAYS, "model": made(jit_compile=True)},
    "several steps at once": lambda: {**ARRAYS, "model": made(steps_per_execution=2)},
    "files for each": lambda: {"x": by_files()},
    "no seed": lambda: {"x": pairs().shuffle(9).batch(4)},
    "generators without a seed": lambda: {"x": unseeded, "steps_per_epoch": 3},
    "numbers drawn in threads": lambda: {"x": DrawsInThreads()},
    "another seed": lambda: {**ARRAYS, "seed": rank},
    "batches of its own": lambda: {"x": of_one_rank},
    "rows of its own": lambda: {"x": Shuffled()},
    "other epochs": lambda: {**ARRAYS, "epochs": 1 + rank},
    "callbacks of the chief": lambda: {**ARRAYS, "callbacks": [] if rank else [callbacks.TerminateOnNaN()]},
}


def refuse(own: Path) -> dict[str, tuple[str, int]]:
    """By name, what `fit` says of what it refuses, and how many steps it had trained."""
    said = {}
    for name, make in REFUSED.items():
        tf.random.set_seed(None)
        given = make()
        model = given.pop("model", None) or made()
        tf.keras.utils.set_random_seed(given.pop("seed", 1))
        try:
            worker.keras.fit(model, **{"epochs": 1, **given}, verbose=0, directory=own / name)
        except (TypeError, ValueError) as error:
            said[name] = str(error), int(model.optimizer.iterations.numpy())
    return said


def fit(row: str, own: Path) -> list[Any]:
    """Trains a row; what it ends with besides variables."""
    with strategy.scope():
        given = OTHERS[row](own) if row in OTHERS else SOURCES[row]()
        model = given.pop("model", None) or regression()
    given = {"validation_data": (X[:9], Y[:9]), **given}
    if "validation_split" in given:
        del given["validation_data"]
    listed = [*given.pop("callbacks", ()), Places()]
    history = worker.keras.fit(
        model, **given, epochs=EPOCHS, callbacks=listed, verbose=0, directory=own / "ckpt", interval="2 steps"
    )
    kept = [
        (type(one).__name__, {name: value for name, value in vars(one).items() if isinstance(value, int | float)})
        for one in listed
        if not isinstance(one, callbacks.CSVLogger)  # it appends after a restart
    ]
    if rank == 0 and (own / "log.csv").exists():
        names = sorted(path.name for path in own.glob("*.*") if path.suffix in (".h5", ".keras"))
        kept.append(((own / "log.csv").read_text(), names))
    return [model, history.history, history.epoch, kept]


def loop(own: Path) -> list[Any]:
    """What `fit` does with the examples, without it."""
    with strategy.scope():
        model = regression()

    def on_replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            errors = tf.square(model(x, training=True)[:, 0] - y)
            loss = tf.math.divide_no_nan(tf.reduce_sum(errors), tf.cast(tf.size(errors), "float32"))
            share = loss / strategy.num_replicas_in_sync
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(share, variables), variables, strict=True))
        return loss

    step = tf.function(lambda x, y: strategy.run(on_replica, args=(x, y)), autograph=False)
    tracked = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    with worker.Run(tracked, strategy=strategy, directory=own / "ckpt", interval="2 steps") as run:
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches(examples()):
                run.step_done(loss=step(x, y))
    return [model]


def _digest(variables: list[Any]) -> str:
    digest = hashlib.sha256()
    for variable in variables:
        for copy in replica_copies(variable):
            digest.update(copy.numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    if place.startswith("save "):
        pattern = place.removeprefix("save ")
        watch = pytest.MonkeyPatch()

        def before(name: str, path: Path) -> None:
            if str(rank) == victim and ".partial" in str(path) and re.fullmatch(pattern, f"{name} {path.name}"):
                os.kill(os.getpid(), signal.SIGKILL)

        power_calls.watch(watch, folder, before)
    if not is_exact:
        (folder / f"refused-{rank}").write_text(json.dumps(refuse(folder)))
        return
    for row in (word.replace("_", " ") for word in rows):
        own = folder / row
        own.mkdir(parents=True, exist_ok=True)
        tf.keras.utils.set_random_seed(1)
        model, *kept = loop(own) if row == "loop" else fit(row, own)
        others = [kept, extra_state.read_generators(), _digest(model.variables)]
        text = json.dumps(others, default=str, sort_keys=True)
        trained = _digest([*model.weights, *model.optimizer.variables])
        digests = trained, hashlib.sha256(text.encode()).hexdigest()
        (own / f"end-{rank}").write_text(f"{' '.join(digests)}\n{json.dumps(kept, default=str)}\n")


if __name__ == "__main__":
    main()
