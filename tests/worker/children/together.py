"""Trains with several processes: FOLDER STEPS.

Each writes a digest of everything that decides its next step, one of its random state, one of the values that its
replicas have for themselves (sums, means, metrics), and one of what all have in common: weights and optimizer. With
BALLAST_MIB in the environment the state is larger by that, with NAN_AT training diverges at that step, once.
"""

import hashlib
import json
import os
import random
import sys
import time
from pathlib import Path

import numpy as np

import worker
from worker.state import extra_state

strategy = worker.strategy("multiworker", deterministic=True, directory=Path(sys.argv[1]) / "ckpt")

import tensorflow as tf  # noqa: E402 - the strategy comes first

from tests.worker import training  # noqa: E402 - it makes tensors
from tests.worker.own_values import OwnValues  # noqa: E402

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
nan_at = int(os.environ.get("NAN_AT", "0"))
resolver = strategy.cluster_resolver
rank = 0 if resolver is None else resolver.task_id
tracked = training.build(strategy)
own = OwnValues(strategy)
tracked.own, tracked.alone = own.variables, own.alone
with strategy.scope():
    mebibytes = range(int(os.environ.get("BALLAST_MIB", "0")))
    ballast = [tf.Variable(tf.fill([1 << 18], float(number))) for number in mebibytes]
if ballast:
    tracked.ballast = ballast
with worker.Run(
    tracked, strategy=strategy, total_steps=steps, directory=folder / "ckpt", interval="7 steps", state=own.metrics
) as run:
    print(f"worker {rank} pid {os.getpid()} begins at {run.step}\n", end="", flush=True)
    step = training.step_of(tracked, strategy)
    for images, labels in run.batches(training.data()):
        noise = np.random.normal(size=rank + 1).sum() + random.random()
        own.update(run.step)
        loss = step(images, labels)
        for variable in ballast:
            variable.assign_add(tf.ones_like(variable) * 0.1)
        if run.step + 1 == nan_at and not (has_diverged := folder / f"nan-{rank}").exists():
            has_diverged.touch()
            loss = float("nan")
        run.step_done(loss=loss, noise=noise)
        if (pause := float(os.environ.get("PAUSE", "0"))) > 0:
            time.sleep(pause)
digest = hashlib.sha256()
for value in [*training.all_values(tracked), *(variable.numpy() for variable in ballast)]:
    digest.update(value.tobytes())
drawn = json.dumps(extra_state.read_generators(), sort_keys=True)
common = hashlib.sha256()
for variable in [*tracked.model.trainable_variables, *tracked.optimizer.variables, *ballast]:
    common.update(variable.numpy().tobytes())
digests = digest.hexdigest(), *(hashlib.sha256(each.encode()).hexdigest() for each in (drawn, json.dumps(own.values())))
(folder / f"end-{rank}").write_text(f"{' '.join(digests)} {common.hexdigest()}\n")
