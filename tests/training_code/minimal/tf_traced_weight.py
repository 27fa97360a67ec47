"""A penalty that grows with the epoch, as it seems: the function was traced in the first one."""

import tensorflow as tf

import worker

strategy = worker.strategy()
tf.keras.utils.set_random_seed(5)
x = tf.random.normal((32, 5))
y = tf.reduce_sum(x, axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(32).batch(8)
model = tf.keras.Sequential([tf.keras.Input((5,)), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.02)
optimizer.build(model.trainable_variables)
epoch = 0


@tf.function
def train_step(features, labels):
    beta = 0.1 * epoch
    with tf.GradientTape() as tape:
        outputs = model(features)
        loss = tf.reduce_mean(tf.square(outputs - labels)) + beta * tf.reduce_mean(tf.square(outputs))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
with worker.Run(checkpoint, strategy=strategy, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        for features, labels in run.batches(dataset):
            run.step_done(loss=train_step(features, labels))

print(f"weights {float(tf.reduce_sum(model.weights[0])):.7f}")
