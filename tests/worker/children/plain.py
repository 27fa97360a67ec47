"""A run with one variable that counts; options choose how it misbehaves."""

import sys
import time

import worker

if "fail-before-run" in sys.argv:
    raise RuntimeError("the data are not there")

import tensorflow as tf

count = tf.Variable(0, dtype=tf.int64)
with worker.Run(tf.train.Checkpoint(count=count), total_steps=int(sys.argv[2]), directory=sys.argv[1]) as run:
    print("step", run.step, flush=True)
    while run.step < 1_000_000_000:
        if run.total_steps is not None and run.step >= run.total_steps:
            break
        count.assign_add(1)
        time.sleep(0.01)
        run.step_done(count=count)
        print("step", run.step, flush=True)
        if "exit-early" in sys.argv:
            sys.exit(0)
    print("count", int(count), flush=True)
