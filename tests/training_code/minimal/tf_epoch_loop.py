"""A custom loop with a total in Python and a loop over range(EPOCHS), as the oldest tutorials have it."""

import tensorflow as tf

import worker

strategy = worker.strategy()
EPOCHS = 4
tf.random.set_seed(22)
x = tf.random.normal((40, 3))
y = tf.reduce_sum(x, axis=1, keepdims=True)
train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40).batch(8)
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(6, "relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adagrad(0.1)
optimizer.build(model.trainable_variables)


@tf.function
def train_step(inputs, targets):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(inputs) - targets))
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
with worker.Run(checkpoint, strategy=strategy, directory="checkpoints") as run:
    for epoch in range(EPOCHS):
        for step, (inputs, targets) in enumerate(run.batches(train_dataset)):
            loss = train_step(inputs, targets)
            if step % 2 == 0:
                print(f"Training loss at step {step}: {float(loss):.4f}")
            run.step_done(loss=loss)

print(f"weights {sum(float(tf.reduce_sum(w)) for w in model.trainable_variables):.7f}")
