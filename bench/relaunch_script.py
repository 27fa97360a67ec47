"""The job of bench.relaunch as people write it: a script with a loop of its own and `worker.Run`, started as
`python bench/relaunch_script.py`. It has the network, the data and the records of bench/relaunch_job.py."""

import numpy as np  # noqa: F401 - as most scripts have it
import tensorflow as tf

import worker

import relaunch_job as job  # type: ignore[import-not-found]  # isort: skip - beside this file; it keeps the records


def main() -> None:
    strategy = worker.strategy()
    with strategy.scope():
        model, optimizer, loss_of = job.network()
    job.tell("built")

    def on_replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=job.BATCH)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    update = tf.function(lambda batch: strategy.run(on_replica, args=batch))
    dataset = tf.data.Dataset.from_tensor_slices(job.examples()).repeat().batch(job.BATCH, drop_remainder=True)
    with worker.Run(
        tf.train.Checkpoint(model=model, optimizer=optimizer), strategy=strategy, total_steps=job.ENDLESS
    ) as run:
        for batch in run.batches(dataset):
            run.step_done(loss=update(batch))


if __name__ == "__main__":
    main()
