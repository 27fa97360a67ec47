"""A small job with a loop of its own, under the strategy that the configuration says, on the GPU if there is one.

STEPS steps of at least STEP_S seconds. Writes each step, and a hash of the last state, as `remembering.py` does, dies
as that does, and has trouble with the GPU as a file `trouble` says: `fault` (a kernel touches memory that is not
mapped), `spin` (one waits there for LASTS_S seconds), `compute` (one computes for as long), `full` (more memory than it
has is asked for).
"""

import hashlib
import os
import time
from pathlib import Path

import worker

strategy = worker.strategy(deterministic=True)

import numpy as np  # noqa: E402 - worker.strategy must configure the devices first
import tensorflow as tf  # noqa: E402

from tests.children.cuda import Kernels  # noqa: E402
from tests.children.dying import DeathAtLine, die_if_told, rest_of_step  # noqa: E402

STEPS, STEP_S = int(os.environ["STEPS"]), float(os.environ["STEP_S"])
BESIDE = Path(os.environ["BESIDE"])
LASTS_S = float(os.environ.get("LASTS_S", "60"))

tf.keras.utils.set_random_seed(5)
layers = tf.keras.layers
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((16, 16, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = tf.keras.optimizers.Adam(1e-3)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


@tf.function
def train_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """The mean loss over the batch."""

    def on_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(labels, model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return strategy.reduce("SUM", strategy.run(on_replica, args=(images, labels)), axis=None)


def meet_trouble(path: Path = BESIDE / "trouble") -> None:
    """Once."""
    if not path.exists():
        return
    what = path.read_text()
    path.unlink()
    if what == "full":
        tf.zeros([1 << 38])
    elif what == "fault":
        Kernels().fault()
    else:
        {"spin": Kernels().spin, "compute": Kernels().compute}[what](LASTS_S)


numbers = np.random.default_rng(1)
data = worker.Examples(
    numbers.normal(size=(2048, 16, 16, 3)).astype("float32"), numbers.integers(0, 10, 2048), batch_size=64, seed=3
)
state = tf.train.Checkpoint(model=model, optimizer=optimizer)
with worker.Run(state, strategy=strategy, total_steps=STEPS) as run, (BESIDE / "steps").open("a", buffering=1) as steps:
    for batch in run.batches(data):
        began = time.monotonic()
        loss = train_step(*batch)
        meet_trouble()
        rest_of_step(BESIDE, began, STEP_S)
        die_if_told(BESIDE, DeathAtLine())
        steps.write(f"{run.step + 1} {os.getpid()} {time.time():.3f} {float(loss):.17g}\n")
        run.step_done(loss=loss)
digest = hashlib.sha256()
for variable in (*model.variables, *optimizer.variables):
    digest.update(np.asarray(variable).tobytes())
(BESIDE / "device").write_text(model.weights[0].value.device if strategy.num_replicas_in_sync == 1 else "mirrored")
(BESIDE / "hash").write_text(digest.hexdigest())
