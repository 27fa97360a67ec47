"""Divides data between the processes that train together and records which got what: FOLDER BATCH STOP KIND ...

Each kind of data goes on from FOLDER/KIND, up to step STOP (0: to the end of the second epoch), with global batches of
BATCH examples.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import worker

strategy = worker.strategy("multiworker")

import tensorflow as tf  # noqa: E402 - the strategy comes first

from worker.data import collectives  # noqa: E402

COUNT = 38
folder, batch_size, stop = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
together = collectives.gang_of(strategy)
rank = 0 if together is None else together.rank
names = [str(folder / name) for name in ("one.txt", "two.txt")]


def from_files(policy: Any) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    lines = tf.data.Dataset.from_tensor_slices(names).interleave(tf.data.TextLineDataset, cycle_length=1)
    return lines.map(tf.strings.to_number).batch(batch_size).with_options(options)


def uneven() -> tf.data.Dataset:
    """Batches of all sizes up to twice as large; no size is known beforehand."""
    return tf.data.Dataset.range(COUNT).group_by_window(
        lambda number: number // (2 * batch_size),
        lambda key, part: part.batch(tf.where(key % 2 == 0, tf.constant(batch_size, tf.int64), 2 * batch_size)),
        window_size=2 * batch_size,
    )


policies = tf.data.experimental.AutoShardPolicy
KINDS: dict[str, Callable[[], Any]] = {
    "examples": lambda: worker.Examples(tf.range(COUNT), batch_size=batch_size, seed=3),
    "dataset": lambda: tf.data.Dataset.range(COUNT).batch(batch_size),
    "uneven batches": uneven,
    "files": lambda: from_files(policies.AUTO),
    "files of its own": lambda: from_files(policies.FILE),
}


def train(kind: str) -> None:
    source = KINDS[kind]()
    with strategy.scope():
        tracked = tf.train.Checkpoint(count=tf.Variable(0))
    with (
        worker.Run(tracked, strategy=strategy, directory=folder / kind, interval="1000 steps") as run,
        (folder / f"{kind}-{rank}.jsonl").open("a") as given,
    ):
        while run.epoch < 2:
            for batch in run.batches(source):
                parts = strategy.experimental_local_results(batch)
                rows = [int(row) for part in parts for row in part.numpy().reshape(-1)]
                given.write(json.dumps([run.epoch, rows]) + "\n")
                run.step_done()
                if run.step == stop:
                    return


for kind in sys.argv[4:]:
    try:
        train(kind)
    except ValueError as error:
        print(f"{kind}: {error}\n", end="", flush=True)  # one piece: all have one pipe
