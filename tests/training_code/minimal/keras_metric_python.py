"""A metric of Python's numbers, from which a callback takes the learning rate."""

import tensorflow as tf

import worker
import worker.keras

worker.strategy()
tf.keras.utils.set_random_seed(6)
x = tf.random.normal((32, 5))
y = tf.reduce_sum(x, axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(32).batch(8)


class Worst(tf.keras.metrics.Metric):
    def __init__(self):
        super().__init__(name="worst")
        self.seen = 0.0

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen = max(self.seen * 0.9, float(tf.reduce_max(tf.abs(y_true - y_pred))))

    def result(self):
        return self.seen

    def reset_state(self):
        pass


class Rate(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.01 / (1 + worst.seen)


worst = Worst()
model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(1)])
model.compile("adam", "mse", metrics=[worst], run_eagerly=True)
worker.keras.fit(model, dataset, epochs=3, verbose=0, callbacks=[Rate()])

print(f"weights {float(tf.reduce_sum(model.weights[0])):.7f}")
