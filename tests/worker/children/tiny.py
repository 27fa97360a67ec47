"""A run whose result depends on every kind of random state; prints each step and, at the end, a hash of everything."""

import random
import sys

import worker

strategy = worker.strategy(replicas=2)

import hashlib  # noqa: E402 - TensorFlow's devices are configured first

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from tests.worker import training  # noqa: E402


def main(total_steps: int) -> None:
    tracked = training.build(strategy)
    worker.replica_streams(tracked.model)
    rng = np.random.default_rng(3)
    seeds = tf.keras.random.SeedGenerator(5)
    with strategy.scope():
        generator = tf.random.Generator.from_seed(7)
    step = training.step_of(tracked, strategy)
    noise = tf.function(lambda: strategy.run(lambda: generator.normal([BATCH_OF_REPLICA, 8, 8, 1])), autograph=False)
    whole = tf.train.Checkpoint(model=tracked.model, optimizer=tracked.optimizer, generator=generator)
    settings = {"interval": "7 steps", "generators": [rng, seeds], "strict": True}
    with worker.Run(whole, strategy=strategy, total_steps=total_steps, **settings) as run:
        for images, labels in run.batches(training.data()):
            scale = random.random() + np.random.random() + rng.random() + float(tf.keras.random.uniform([], seed=seeds))
            noisy = strategy.run(lambda image, added, by: image * by + added, args=(images, noise(), scale))
            run.step_done(loss=step(noisy, labels))
            print("step", run.step, flush=True)
    digest = hashlib.sha256()
    for value in training.all_values(tracked):
        digest.update(value.tobytes())
    digest.update(repr((random.random(), np.random.random())).encode())
    print("hash", digest.hexdigest(), flush=True)


BATCH_OF_REPLICA = training.BATCH // 2

if __name__ == "__main__":
    main(int(sys.argv[1]))
