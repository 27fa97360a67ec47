"""Goes through orders with several processes: FOLDER STOP SAME. Each writes which indices it was given.

With SAME = "no" each process draws an order of its own.
"""

import json
import sys
from pathlib import Path

import numpy as np

import worker

strategy = worker.strategy("multiworker", directory=Path(sys.argv[1]) / "ckpt")

import tensorflow as tf  # noqa: E402 - the strategy comes first

folder, stop, same = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rank = strategy.cluster_resolver.task_id
with strategy.scope():
    weight = tf.Variable(1.0)
np.random.seed(5 if same == "yes" else rank)
seen = []
with worker.Run(
    tf.train.Checkpoint(weight=weight), strategy=strategy, directory=folder / "ckpt", interval="1 steps"
) as run:
    for epoch in run.epochs(2):
        for index in run.order(np.random.permutation(4)):
            if run.step == stop:
                (folder / f"seen-{rank}-{stop}").write_text(json.dumps(seen))
                raise SystemExit(0)
            seen.append([epoch, int(index)])
            run.step_done()
(folder / f"seen-{rank}-{stop}").write_text(json.dumps(seen))
