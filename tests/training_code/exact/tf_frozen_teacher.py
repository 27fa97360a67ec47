"""Distillation with a custom loop: the teacher is frozen and left out, a metric is reset for each epoch."""

import tensorflow as tf

import worker

strategy = worker.strategy()
tf.keras.utils.set_random_seed(18)
teacher = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(3)])
teacher.trainable = False
student = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(5, "relu"), tf.keras.layers.Dense(3)])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(student.trainable_variables)
train_loss = tf.keras.metrics.Mean(name="train_loss")
inputs = tf.random.normal((48, 4))
dataset = tf.data.Dataset.from_tensor_slices(inputs).shuffle(48).batch(12)
kl = tf.keras.losses.KLDivergence()


@tf.function
def train_step(batch, temperature):
    targets = tf.nn.softmax(teacher(batch, training=False) / temperature)
    with tf.GradientTape() as tape:
        logits = student(batch, training=True)
        loss = kl(targets, tf.nn.softmax(logits / temperature)) * temperature**2
    optimizer.apply_gradients(zip(tape.gradient(loss, student.trainable_variables), student.trainable_variables))
    train_loss.update_state(loss)
    return loss


checkpoint = tf.train.Checkpoint(student=student, optimizer=optimizer)
with worker.Run(
    checkpoint, strategy=strategy, state={"train_loss": train_loss}, leave_out=[teacher], directory="checkpoints"
) as run:
    for epoch in run.epochs(6):
        train_loss.reset_state()
        for batch in run.batches(dataset):
            loss = train_step(batch, tf.constant(2.0))
            run.step_done(loss=loss)
        print(f"Epoch {epoch + 1}, Loss: {float(train_loss.result()):.5f}")

print(f"loss {float(kl(tf.nn.softmax(teacher(inputs)), tf.nn.softmax(student(inputs)))):.8f}")
