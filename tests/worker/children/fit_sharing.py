"""Fits for one epoch on several processes, with files that each process has for itself (FILE) or whole (OFF):
POLICY; says why not."""

import sys
import threading

import worker

strategy = worker.strategy("multiworker")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from worker.data import collectives  # noqa: E402
from worker.keras import fit  # noqa: E402

together = collectives.gang_of(strategy)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[sys.argv[1]]
dataset = tf.data.Dataset.from_tensor_slices((np.ones((8, 2), "float32"), np.zeros(8, "float32"))).batch(4)
try:
    fit(model, lambda epoch: dataset.with_options(options), epochs=1, strategy=strategy, verbose=0)
except ValueError as error:
    if together is not None and together.is_chief:
        print(f"refused after {int(model.optimizer.iterations.numpy())} steps: {error}\n", end="", flush=True)
    else:
        threading.Event().wait()  # the chief, which ends it, is to say that; the first end of another one ends them all
else:
    print(f"trained {int(model.optimizer.iterations.numpy())} steps\n", end="", flush=True)
