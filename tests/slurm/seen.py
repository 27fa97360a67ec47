"""Trains one epoch on however many nodes there are, and records which examples each rank got: FOLDER COUNT PAUSE."""

import json
import sys
import time
from pathlib import Path

import worker

strategy = worker.strategy("multiworker")

import tensorflow as tf  # noqa: E402 - the strategy comes first

folder, count, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
resolver = strategy.cluster_resolver
with strategy.scope():
    tracked = tf.train.Checkpoint(count=tf.Variable(0))
data = worker.Examples(tf.range(count), batch_size=6, seed=3)
with (
    worker.Run(tracked, strategy=strategy, directory=folder / "ckpt", interval="100000 steps") as run,
    (folder / f"seen-{resolver.task_id}.jsonl").open("a") as seen,
):
    nodes = len(resolver.cluster_spec().as_dict()["worker"])
    print(f"worker {resolver.task_id} of {nodes} begins at {run.step}\n", end="", flush=True)
    while run.epoch < 1:
        for batch in run.batches(data):
            parts = strategy.experimental_local_results(batch)
            rows = [int(row) for part in parts for row in part.numpy().reshape(-1)]
            seen.write(json.dumps([nodes, rows]) + "\n")
            seen.flush()
            time.sleep(pause)
            run.step_done()
