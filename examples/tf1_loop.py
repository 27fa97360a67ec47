"""Handwritten digits in the TF1 style: a graph, a session, and a loop over steps that resumes where it stopped.

    python examples/tf1_loop.py               trains, and continues from its last checkpoint when started again
    supervisord -n -c examples/tf1_loop.conf  the same, under supervision

To continue from a folder with `model.ckpt-1200.index` and the like, which such a loop wrote before, make it the
checkpoint_dir, or name it with initial_checkpoint. The data are the 1,797 images of 8 x 8 pixels that come with
scikit-learn; every fifth is for the test.
"""

import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from worker.tf1 import Run, prepare

TOTAL_STEPS = int(os.environ.get("STEPS", "2000"))
BATCH_SIZE = 64
tf1 = tf.compat.v1


def batch_at(step: int, count: int) -> np.ndarray:
    """Indices of the batch of a step: a function of the step alone, so no data position has to be saved."""
    epoch, number = divmod(step, count // BATCH_SIZE)
    order = np.random.default_rng([1, epoch]).permutation(count)
    return order[number * BATCH_SIZE : (number + 1) * BATCH_SIZE]


def main() -> None:
    """Trains, then prints the accuracy on the test images."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype("float32")
    test = np.arange(len(labels)) % 5 == 0
    prepare(seed=1, directory="runs/tf1")
    with tf1.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(1)
        inputs, expected = tf1.placeholder(tf.float32, [None, 64]), tf1.placeholder(tf.int64, [None])
        w1, b1 = tf1.get_variable("w1", [64, 48]), tf1.get_variable("b1", initializer=tf.zeros([48]))
        w2, b2 = tf1.get_variable("w2", [48, 10]), tf1.get_variable("b2", initializer=tf.zeros([10]))
        scores = tf.matmul(tf.nn.relu(tf.matmul(inputs, w1) + b1), w2) + b2
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=expected, logits=scores))
        train = tf1.train.AdamOptimizer(2e-3).minimize(loss, global_step=tf1.train.get_or_create_global_step())
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(scores, 1), expected), tf.float32))
        session.run(tf1.global_variables_initializer())
        with Run(session, total_steps=TOTAL_STEPS, directory="runs/tf1", interval="200 steps") as run:
            for step in run.steps():
                rows = batch_at(step, int((~test).sum()))
                fed = {inputs: images[~test][rows], expected: labels[~test][rows]}
                _, value = session.run([train, loss], fed)
                run.step_done(loss=value)
        print(f"test accuracy {session.run(accuracy, {inputs: images[test], expected: labels[test]}):.3f}")


if __name__ == "__main__":
    main()
