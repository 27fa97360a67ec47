"""A small TensorFlow job whose every step changes all of its state.

STEPS steps of at least STEP_S seconds, MEGABYTES of state. Writes each step into the file `steps` in the folder BESIDE,
and a hash of the last state into `hash`. If there is a file `die` there, it deletes that and dies in the middle of the
step as the file says: `raise`, `exit`, `segv`, `abort`, `kill`, or `memory` (an error for a lack of it).
"""

import hashlib
import os
import signal
import time
from pathlib import Path

import tensorflow as tf

import worker

STEPS = int(os.environ.get("STEPS", "100"))
STEP_S = float(os.environ.get("STEP_S", "0.02"))
ELEMENTS = int(float(os.environ.get("MEGABYTES", "1")) * (1 << 18))
BESIDE = Path(os.environ["BESIDE"])

weights = tf.Variable(tf.zeros([ELEMENTS]))
moment = tf.Variable(0.5, dtype=tf.float64)
generator = tf.random.Generator.from_seed(7)


@tf.function
def step() -> tf.Tensor:
    drawn = generator.uniform([], dtype=tf.float64)
    moment.assign(0.9 * moment + drawn)
    weights.assign_add(tf.fill(tf.shape(weights), tf.cast(moment, tf.float32)))
    return moment


def die(how: str) -> None:
    if how == "raise":
        raise RuntimeError("told to")
    if how == "memory":
        raise MemoryError("told to")
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "kill": signal.SIGKILL}[how])


state = tf.train.Checkpoint(weights=weights, moment=moment, generator=generator)
with worker.Run(state, total_steps=STEPS) as run, (BESIDE / "steps").open("a", buffering=1) as steps:
    while not run.reached:
        began = time.monotonic()
        loss = step()
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
        if (BESIDE / "die").exists():
            how = (BESIDE / "die").read_text()
            (BESIDE / "die").unlink()
            die(how)
        steps.write(f"{run.step + 1} {os.getpid()} {time.time():.3f} {float(loss):.17g}\n")
        run.step_done(loss=loss)
digest = hashlib.sha256(weights.numpy().tobytes() + moment.numpy().tobytes() + generator.state.numpy().tobytes())
(BESIDE / "hash").write_text(digest.hexdigest())
