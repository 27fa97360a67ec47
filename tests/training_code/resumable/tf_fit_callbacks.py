"""TensorFlow's "distributed training with Keras": fit under a strategy with the usual callbacks."""

import os

import tensorflow as tf
from sklearn.datasets import load_digits

import worker.keras

images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")

strategy = worker.strategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")

BUFFER_SIZE = 10000
BATCH_SIZE = 64 * strategy.num_replicas_in_sync


def scale(image, label):
    image = tf.cast(image, tf.float32)
    image /= 1.0
    return image, label


full = tf.data.Dataset.from_tensor_slices((images, labels))
train_dataset = full.take(1400).map(scale).cache().shuffle(BUFFER_SIZE).batch(BATCH_SIZE)
eval_dataset = full.skip(1400).map(scale).batch(BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )

checkpoint_dir = "./training_checkpoints"
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch}.weights.h5")


def decay(epoch):
    if epoch < 2:
        return 1e-3
    if epoch >= 2 and epoch < 3:
        return 1e-4
    return 1e-5


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"\nLearning rate for epoch {epoch + 1} is {model.optimizer.learning_rate.numpy()}")


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="./logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]

EPOCHS = 4
worker.keras.fit(model, train_dataset, strategy=strategy, epochs=EPOCHS, callbacks=callbacks)
eval_loss, eval_acc = model.evaluate(eval_dataset)
print(f"Eval loss: {eval_loss}, Eval accuracy: {eval_acc}")
