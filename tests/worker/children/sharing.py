"""Divides data between the processes that train together and records which got what: FOLDER BATCH:STOP:KIND ...

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
folder = Path(sys.argv[1])
together = collectives.gang_of(strategy)
rank = 0 if together is None else together.rank
names = [str(folder / name) for name in ("one.txt", "two.txt")]


def from_files(policy: Any, batch_size: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    lines = tf.data.Dataset.from_tensor_slices(names).interleave(tf.data.TextLineDataset, cycle_length=1)
    return lines.map(tf.strings.to_number).batch(batch_size).with_options(options)


def uneven(batch_size: int) -> tf.data.Dataset:
    """Batches of all sizes up to twice as large; no size is known beforehand."""
    return tf.data.Dataset.range(COUNT).group_by_window(
        lambda number: number // (2 * batch_size),
        lambda key, part: part.batch(tf.where(key % 2 == 0, tf.constant(batch_size, tf.int64), 2 * batch_size)),
        window_size=2 * batch_size,
    )


policies = tf.data.experimental.AutoShardPolicy
KINDS: dict[str, Callable[[int], Any]] = {
    "examples": lambda batch_size: worker.Examples(tf.range(COUNT), batch_size=batch_size, seed=3),
    "dataset": lambda batch_size: tf.data.Dataset.range(COUNT).batch(batch_size),
    "uneven batches": uneven,
    "files": lambda batch_size: from_files(policies.AUTO, batch_size),
    "files of its own": lambda batch_size: from_files(policies.FILE, batch_size),
}


def train(batch_size: int, stop: int, kind: str) -> None:
    source = KINDS[kind](batch_size)
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


for order in sys.argv[2:]:
    batch, last, kind = order.split(":")
    try:
        train(int(batch), int(last), kind)
    except ValueError as error:
        print(f"{kind}: {error}\n", end="", flush=True)  # one piece: all have one pipe
