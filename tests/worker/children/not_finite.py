"""Two workers whose variable number N becomes NaN after the fourth step: FOLDER N."""

import sys

import worker

strategy = worker.strategy("multiworker", directory=sys.argv[1])

import tensorflow as tf  # noqa: E402 - the strategy first

with strategy.scope():
    variables = [tf.Variable(tf.fill([size], 1.0)) for size in (300, 400)]
with worker.Run(
    tf.train.Checkpoint(variables=variables),
    strategy=strategy,
    total_steps=100_000,
    directory=sys.argv[1],
    interval="3 steps",
) as run:
    while not run.reached:
        if run.step == 4:
            variables[int(sys.argv[2])].assign(variables[int(sys.argv[2])] * float("nan"))
        run.step_done(loss=1.0)
