"""A TF1 loop with a Saver of its own: get_checkpoint_state at the start, a save every so often, a SavedModel at the end."""

import os

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

tf1 = tf.compat.v1
tf1.disable_eager_execution()

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).astype("float32")

x = tf1.placeholder(tf.float32, [None, 64])
y = tf1.placeholder(tf.int64, [None])
hidden = tf1.layers.dense(x, 32, activation=tf.nn.relu) if hasattr(tf1.layers, "dense") else None
if hidden is None:
    w1 = tf1.get_variable("w1", [64, 32], initializer=tf1.glorot_uniform_initializer())
    hidden = tf.nn.relu(tf.matmul(x, w1))
w2 = tf1.get_variable("w2", [32, 10], initializer=tf1.glorot_uniform_initializer())
logits = tf.matmul(hidden, w2)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
global_step = tf1.train.get_or_create_global_step()
rate = tf1.train.exponential_decay(0.01, global_step, 40, 0.9, staircase=True)
train_op = tf1.train.AdamOptimizer(rate).minimize(loss, global_step=global_step)

saver = tf1.train.Saver(max_to_keep=2)
checkpoint_dir = "./model"
os.makedirs(checkpoint_dir, exist_ok=True)
STEPS = 120

with tf1.Session() as sess:
    sess.run(tf1.global_variables_initializer())
    ckpt = tf1.train.get_checkpoint_state(checkpoint_dir)
    if ckpt and ckpt.model_checkpoint_path:
        saver.restore(sess, ckpt.model_checkpoint_path)

    for step in range(STEPS):
        rows = np.random.randint(len(images), size=32)
        _, value = sess.run([train_op, loss], {x: images[rows], y: labels[rows]})
        if step % 50 == 0:
            saver.save(sess, os.path.join(checkpoint_dir, "model.ckpt"), global_step=global_step)
            print(f"step {step}: loss {value:.4f}")

    tf1.saved_model.simple_save(sess, f"./export-{os.getpid()}", {"x": x}, {"logits": logits})
