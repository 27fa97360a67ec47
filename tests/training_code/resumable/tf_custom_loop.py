"""TensorFlow's "quickstart for experts": metrics as globals, an epoch loop, a test pass at each epoch's end."""

import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow.keras import Model
from tensorflow.keras.layers import Conv2D, Dense, Flatten, Input

import worker

worker.strategy()
images, labels = load_digits(return_X_y=True)
images = (images / 16.0).reshape(-1, 8, 8, 1).astype("float32")
x_train, y_train, x_test, y_test = images[:1440], labels[:1440], images[1440:], labels[1440:]

train_ds = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(10000).batch(96)
test_ds = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(96)


class MyModel(Model):
    def __init__(self):
        super().__init__()
        self.conv1 = Conv2D(8, 3, activation="relu")
        self.flatten = Flatten()
        self.d1 = Dense(32, activation="relu")
        self.d2 = Dense(10)

    def call(self, x):
        x = self.conv1(x)
        x = self.flatten(x)
        x = self.d1(x)
        return self.d2(x)


model = MyModel()
model(Input((8, 8, 1)))

loss_object = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam()

train_loss = tf.keras.metrics.Mean(name="train_loss")
train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
test_loss = tf.keras.metrics.Mean(name="test_loss")
test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="test_accuracy")


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        predictions = model(images, training=True)
        loss = loss_object(labels, predictions)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_loss(loss)
    train_accuracy(labels, predictions)


@tf.function
def test_step(images, labels):
    predictions = model(images, training=False)
    t_loss = loss_object(labels, predictions)
    test_loss(t_loss)
    test_accuracy(labels, predictions)


EPOCHS = 4

state = {"train_loss": train_loss, "train_accuracy": train_accuracy}
with worker.Run(tf.train.Checkpoint(model=model, optimizer=optimizer), state=state) as run:
    for epoch in run.epochs(EPOCHS):
        train_loss.reset_state()
        train_accuracy.reset_state()
        test_loss.reset_state()
        test_accuracy.reset_state()

        for images, labels in run.batches(train_ds):
            train_step(images, labels)
            run.step_done()

        for test_images, test_labels in test_ds:
            test_step(test_images, test_labels)

        print(
            f"Epoch {epoch + 1}, "
            f"Loss: {train_loss.result():0.2f}, "
            f"Accuracy: {train_accuracy.result() * 100:0.2f}, "
            f"Test Loss: {test_loss.result():0.2f}, "
            f"Test Accuracy: {test_accuracy.result() * 100:0.2f}"
        )
