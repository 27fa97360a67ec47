"""A small TensorFlow job whose every step changes all of its state.

STEPS steps of at least STEP_S seconds, MEGABYTES of state. Writes each step into the file `steps` in the folder BESIDE,
and a hash of the last state into `hash`. Dies as a file there says (`dying.py`), in the copying itself if DIES_COPYING
is set.
"""

import hashlib
import os
import time
from pathlib import Path

import tensorflow as tf

import worker
from tests.children.dying import DeathAtLine, die_if_told, die_restoring_if_told, rest_of_step

STEPS = int(os.environ.get("STEPS", "100"))
STEP_S = float(os.environ.get("STEP_S", "0.02"))
ELEMENTS = int(float(os.environ.get("MEGABYTES", "1")) * (1 << 18))
BESIDE = Path(os.environ["BESIDE"])

at_line = DeathAtLine()
if os.environ.get("DIES_COPYING"):
    at_line.watch()
die_restoring_if_told(BESIDE, at_line)
weights = tf.Variable(tf.zeros([ELEMENTS]))
moment = tf.Variable(0.5, dtype=tf.float64)
generator = tf.random.Generator.from_seed(7)


@tf.function(autograph=False)  # there is nothing to convert
def step() -> tf.Tensor:
    drawn = generator.uniform([], dtype=tf.float64)
    moment.assign(0.9 * moment + drawn)
    weights.assign_add(tf.fill(tf.shape(weights), tf.cast(moment, tf.float32)))
    return moment + tf.cast(weights[0], tf.float64)


state = tf.train.Checkpoint(weights=weights, moment=moment, generator=generator)
with worker.Run(state, total_steps=STEPS) as run, (BESIDE / "steps").open("a", buffering=1) as steps:
    while not run.reached:
        began = time.monotonic()
        loss = step()
        rest_of_step(BESIDE, began, STEP_S)
        die_if_told(BESIDE, at_line)
        steps.write(f"{run.step + 1} {os.getpid()} {time.time():.3f} {float(loss):.17g}\n")
        run.step_done(loss=loss)
digest = hashlib.sha256(weights.numpy().tobytes() + moment.numpy().tobytes() + generator.state.numpy().tobytes())
(BESIDE / "hash").write_text(digest.hexdigest())
