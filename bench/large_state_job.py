"""The job of bench.large_state: GB of variables, mostly one table of embeddings; each step changes a few rows."""

import os
import time

import tensorflow as tf

import worker

WIDTH = 64
TABLE_SHARE = 0.8
elements = int(float(os.environ["GB"]) * 1e9 / 4)
table = tf.Variable(tf.zeros([int(TABLE_SHARE * elements) // WIDTH, WIDTH]))
dense = [tf.Variable(tf.zeros([int((1 - TABLE_SHARE) * elements) // 10])) for _ in range(10)]
with worker.Run(tf.train.Checkpoint(table=table, dense=dense), total_steps=1_000_000) as run:
    while not run.reached:
        table.scatter_nd_add([[run.step % 1000]], tf.ones([1, WIDTH]))
        dense[run.step % 10].assign_add(tf.ones_like(dense[0]))
        time.sleep(0.05)
        run.step_done()
