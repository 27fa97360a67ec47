"""The job of bench.relaunch: a small convolutional network that records its events with their times.

As an entry point (`bench.relaunch_job:described`) it is trained by stepkeeper's ready-made loop. As a script

    python -m bench.relaunch_job manager|backup FOLDER

the same network is trained by a loop of its own with TensorFlow's CheckpointManager, or by model.fit with Keras'
BackupAndRestore. STORY names a file; each line of it: monotonic seconds, pid, what, number. WIDTH scales the network.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

_story = os.open(os.environ["STORY"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def tell(what: str, number: int = 0) -> None:
    """Writes one line to the file at once."""
    os.write(_story, f"{time.monotonic():.6f} {os.getpid()} {what} {number}\n".encode())


tell("began")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

WIDTH = int(os.environ.get("WIDTH", "32"))
EVERY = int(os.environ.get("EVERY", "20"))  # steps between saves
BATCH, REPLICAS, ENDLESS = 64, 2, 1_000_000

tf.config.threading.set_intra_op_parallelism_threads(1)


def network() -> tuple[Any, Any, Any]:
    """Model, optimizer, loss of one example: 6 convolutions with batch normalisation, and a dense layer."""
    layers = tf.keras.layers
    parts = [tf.keras.Input((16, 16, 1))]
    for factor in (1, 1, 2, 2, 4, 4):
        parts += [layers.Conv2D(WIDTH * factor // 4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
    parts += [layers.Flatten(), layers.Dense(WIDTH * 8, activation="relu"), layers.Dense(10)]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    return tf.keras.Sequential(parts), tf.keras.optimizers.Adam(1e-3), loss


def examples() -> tuple[Any, Any]:
    """As many of them as one epoch of 10 batches takes."""
    numbers = np.random.default_rng(0)
    return numbers.normal(size=(BATCH * 10, 16, 16, 1)).astype("float32"), numbers.integers(0, 10, BATCH * 10)


def described() -> Any:
    """The entry point for stepkeeper's loop, which records its events."""
    import worker

    model, optimizer, loss = network()
    tell("built")
    return worker.Training(model, optimizer, loss, worker.Examples(*examples(), batch_size=BATCH), ENDLESS)


def _watch_the_loop() -> None:
    """Records when a standby is promoted, when the state is restored and when steps are done."""
    from worker.process import standby
    from worker.run.run import Run

    enter, step_done, wait = Run.__enter__, Run.step_done, standby.wait_for_promotion

    def waited(*arguments: Any) -> None:
        wait(*arguments)
        tell("promoted")

    def entered(run: Any) -> Any:
        result = enter(run)
        tell("restored", run.step)
        return result

    def done(run: Any, **metrics: Any) -> None:
        for metric in metrics.values():
            _ = [float(part) for part in getattr(metric, "values", (metric,))]  # the step is over, not only asked for
        tell("step", run.step + 1)
        step_done(run, **metrics)

    Run.__enter__, Run.step_done, standby.wait_for_promotion = entered, done, waited  # type: ignore[method-assign]


if "STEPKEEPER_LAUNCH" in os.environ or "worker.process.attempt" in sys.modules:  # loaded before it waits
    _watch_the_loop()
    tell("imported")


def _strategy() -> Any:
    """As `worker.strategy(replicas=REPLICAS)` does it."""
    if gpus := tf.config.list_physical_devices("GPU"):
        return tf.distribute.MirroredStrategy([f"/gpu:{number}" for number in range(min(len(gpus), REPLICAS))])
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * REPLICAS)
    return tf.distribute.MirroredStrategy([f"/cpu:{number}" for number in range(REPLICAS)])


def with_manager(folder: Path) -> None:
    """The recipe of TensorFlow's guide: a loop, a Checkpoint and a CheckpointManager."""
    tell("imported")
    strategy = _strategy()
    with strategy.scope():
        model, optimizer, loss_of = network()
        optimizer.build(model.trainable_variables)
        step = tf.Variable(0, dtype=tf.int64)
    tell("built")
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model, optimizer=optimizer, step=step), str(folder), max_to_keep=5
    )
    manager.restore_or_initialize()
    tell("restored", int(step.numpy()))

    def on_replica(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(labels, model(images, training=True)), global_batch_size=BATCH)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    update = tf.function(lambda images, labels: strategy.run(on_replica, args=(images, labels)))
    dataset = tf.data.Dataset.from_tensor_slices(examples()).repeat().batch(BATCH, drop_remainder=True)
    for images, labels in strategy.experimental_distribute_dataset(dataset):
        _ = [float(part) for part in update(images, labels).values]
        step.assign_add(1)
        tell("step", int(step.numpy()))
        if int(step.numpy()) % EVERY == 0:
            manager.save(checkpoint_number=int(step.numpy()))


def with_backup(folder: Path) -> None:
    """model.fit with BackupAndRestore, saving as often; a step is a batch."""
    tell("imported")
    strategy = _strategy()
    with strategy.scope():
        model, optimizer, _ = network()
        model.compile(optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tell("built")

    class Told(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            tell("restored", int(self.model.optimizer.iterations.numpy()))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            tell("step", int(self.model.optimizer.iterations.numpy()))

    dataset = tf.data.Dataset.from_tensor_slices(examples()).repeat().batch(BATCH, drop_remainder=True)
    backup = tf.keras.callbacks.BackupAndRestore(str(folder), save_freq=EVERY, double_checkpoint=True)
    model.fit(dataset, steps_per_epoch=ENDLESS, callbacks=[backup, Told()], verbose=0)


if __name__ == "__main__":
    {"manager": with_manager, "backup": with_backup}[sys.argv[1]](Path(sys.argv[2]))
