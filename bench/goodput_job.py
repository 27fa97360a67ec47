"""The training that bench.goodput interrupts: one model, one data set, three ways to resume.

`training` is for `entrypoint`; `python -m bench.goodput_job manager|fit FOLDER STORY STEPS EVERY_S` are the peers. They
write what happens into STORY, a line each: "SECONDS WHAT NUMBER", of the monotonic clock.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 1024
BATCH = 128
TOTAL_STEPS = int(os.environ.get("STEPS", "3000"))


def data() -> tuple[np.ndarray, np.ndarray]:
    """The digits of scikit-learn: images float32 [1797, 64] in [0, 1], labels int64 [1797]."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images / 16.0).astype("float32"), labels.astype("int64")


def model() -> Any:
    """Two wide layers and dropout: some 15 MB with Adam's slots, some 20 ms a step on one core."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((64,)), layers.Dense(WIDTH, activation="relu"), layers.Dropout(0.3),
            layers.Dense(WIDTH, activation="relu"), layers.Dense(10),
        ]
    )  # fmt: skip


def training() -> Any:
    """The entry point for stepkeeper's ready-made loop."""
    import tensorflow as tf

    import worker

    return worker.Training(
        model=model(),
        optimizer=tf.keras.optimizers.Adam(1e-4),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none"),
        data=worker.Examples(*data(), batch_size=BATCH, seed=1),
        total_steps=TOTAL_STEPS,
    )


class Story:
    """Records events with their times, for the measuring process."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def tell(self, what: str, number: float) -> None:
        self._file.write(f"{time.monotonic()} {what} {number}\n")


def _dataset() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(data()).shuffle(1797, seed=1).repeat().batch(BATCH)


def with_manager(folder: Path, story: Story, steps: int, every_s: float) -> None:
    """A custom loop with tf.train.CheckpointManager, as in TensorFlow's guide."""
    import tensorflow as tf

    net, optimizer = model(), tf.keras.optimizers.Adam(1e-4)
    optimizer.build(net.trainable_variables)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    step = tf.Variable(0, dtype=tf.int64)
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=net, optimizer=optimizer, step=step), str(folder), max_to_keep=3
    )
    manager.restore_or_initialize()

    @tf.function
    def train(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, net(images, training=True))
        gradients = tape.gradient(loss, net.trainable_variables)
        optimizer.apply_gradients(zip(gradients, net.trainable_variables, strict=True))
        return loss

    saved_at = time.monotonic()
    for images, labels in _dataset():
        train(images, labels).numpy()
        now = int(step.assign_add(1))
        story.tell("step", now)
        if time.monotonic() - saved_at >= every_s or now >= steps:
            began = time.monotonic()
            manager.save(checkpoint_number=now)
            saved_at = time.monotonic()
            story.tell("saved", saved_at - began)
        if now >= steps:
            return


def with_fit(folder: Path, story: Story, steps: int, every_s: float) -> None:
    """model.fit with BackupAndRestore, at its best: an epoch as long as the interval, both copies kept.

    It goes on at the last epoch's end only, whatever its save_freq, so epochs are what it can save by.
    """
    import tensorflow as tf

    net = model()
    net.compile(tf.keras.optimizers.Adam(1e-4), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    per_epoch = max(1, int(every_s / float(os.environ["STEP_S"])))

    class Telling(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.before = epoch * per_epoch

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            story.tell("step", self.before + batch + 1)

    class Backup(tf.keras.callbacks.BackupAndRestore):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            began = time.monotonic()
            super().on_epoch_end(epoch, logs)
            story.tell("saved", time.monotonic() - began)

    callbacks = [Backup(str(folder / "backup"), double_checkpoint=True), Telling()]
    epochs = -(-steps // per_epoch)
    net.fit(_dataset(), epochs=epochs, steps_per_epoch=per_epoch, callbacks=callbacks, verbose=0)


def main() -> None:
    kind, folder, story_path, steps, every_s = sys.argv[1:]
    Path(folder).mkdir(parents=True, exist_ok=True)
    story = Story(Path(story_path))
    story.tell("begin", os.getpid())
    {"manager": with_manager, "fit": with_fit}[kind](Path(folder), story, int(steps), float(every_s))
    story.tell("done", int(steps))


if __name__ == "__main__":
    main()
