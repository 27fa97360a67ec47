"""Writes the checkpoints beside this file with TensorFlow; they are committed, so that tests don't need it.

python -m tests.protocol.bundles.make
"""

from pathlib import Path

import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent


def manager() -> None:
    """Three checkpoints of tf.train.CheckpointManager, numbered by saves, of steps 40, 80 and 120."""
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(3, name="head")])
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    tracked = tf.train.Checkpoint(model=model, optimizer=optimizer)
    kept = tf.train.CheckpointManager(tracked, str(HERE / "manager"), max_to_keep=3)
    for step in (40, 80, 120):
        optimizer.iterations.assign(step)
        kept.save()


def saver() -> None:
    """Two checkpoints of TF1's Saver, of a graph with Adam, named by global_step: 90 and 100."""
    tf1 = tf.compat.v1
    with tf1.Graph().as_default(), tf1.Session() as session:
        inputs = tf1.placeholder(tf.float32, [None, 4])
        with tf1.variable_scope("head"):
            kernel = tf1.get_variable("kernel", [4, 3])
            bias = tf1.get_variable("bias", [3])
        global_step = tf1.train.get_or_create_global_step()
        loss = tf1.reduce_mean(tf1.square(tf1.matmul(inputs, kernel) + bias))
        train = tf1.train.AdamOptimizer().minimize(loss, global_step=global_step)
        session.run(tf1.global_variables_initializer())
        saver = tf1.train.Saver()
        for step in range(1, 101):
            session.run(train, {inputs: np.ones((2, 4))})
            if step >= 90 and step % 10 == 0:
                saver.save(session, str(HERE / "saver" / "model.ckpt"), global_step=global_step, write_meta_graph=False)
    state = HERE / "saver" / "checkpoint"  # full paths stand in it: as if the folder had been moved since
    state.write_text(state.read_text().replace(str(HERE), "/srv/old"))


def kinds() -> None:
    """One checkpoint of every kind of entry: empty, scalar, strings, an iterator (variants), half, complex."""
    iterator = iter(tf.data.Dataset.range(10).shuffle(5, seed=1))
    next(iterator)
    tracked = tf.train.Checkpoint(
        empty=tf.Variable(tf.zeros([0, 3])),
        words=tf.Variable(["", "x", "yy" * 200]),
        iterator=iterator,
        half=tf.Variable(tf.ones([5], tf.float16)),
        brain=tf.Variable(tf.ones([3], tf.bfloat16)),
        imaginary=tf.Variable(3 + 1j),
        flag=tf.Variable(True),
    )
    tracked.write(str(HERE / "kinds" / "ckpt"))


def sharded() -> None:
    """One checkpoint of several shards, its tensors in parts."""
    options = tf.train.CheckpointOptions(
        experimental_sharding_callback=tf.train.experimental.MaxShardSizePolicy(max_shard_size=1000)
    )
    tracked = tf.train.Checkpoint(tables=[tf.Variable(tf.reshape(tf.range(300.0), [30, 10])) for _ in range(3)])
    tracked.write(str(HERE / "sharded" / "ckpt"), options=options)


if __name__ == "__main__":
    for make in (manager, saver, kinds, sharded):
        make()
