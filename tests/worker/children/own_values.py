"""Trains up to step STOP, in one process or several, with values that each replica has for itself: FOLDER STOP.

Writes every such value of this process to FOLDER/own-RANK, to the last bit.
"""

import json
import sys
from pathlib import Path

import worker

folder, stop = Path(sys.argv[1]), int(sys.argv[2])
strategy = worker.strategy(deterministic=True, directory=folder / "ckpt")

import tensorflow as tf  # noqa: E402 - the strategy comes first

from tests.worker.own_values import OwnValues  # noqa: E402 - it makes tensors

own = OwnValues(strategy)
tracked = tf.train.Checkpoint(own=own.variables, alone=own.alone)
with worker.Run(
    tracked, strategy=strategy, total_steps=stop, directory=folder / "ckpt", interval="1000 steps", state=own.metrics
) as run:
    while run.step < stop:
        own.update(run.step)
        run.step_done()
    (folder / f"own-{own.rank}").write_text(json.dumps(own.values()))
