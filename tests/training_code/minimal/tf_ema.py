"""Moving averages of the weights in a dict of tensors, used for the evaluation at the end."""

import tensorflow as tf

import worker

strategy = worker.strategy()
tf.keras.utils.set_random_seed(5)


class EMA:
    def __init__(self, variables, decay=0.9):
        self.decay = decay
        self.variables = variables
        self.shadow = {v.path: tf.identity(v) for v in variables}

    def update(self):
        for v in self.variables:
            self.shadow[v.path] = self.decay * self.shadow[v.path] + (1.0 - self.decay) * v

    def copy_to(self):
        for v in self.variables:
            v.assign(self.shadow[v.path])


model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
x = tf.random.normal((40, 4))
y = tf.reduce_sum(tf.square(x), axis=1, keepdims=True)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40).batch(8)
ema = EMA(model.trainable_variables)


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(images, training=True) - labels))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
with worker.Run(checkpoint, strategy=strategy, directory="checkpoints") as run:
    for epoch in run.epochs(5):
        for features, labels in run.batches(dataset):
            loss = train_step(features, labels)
            ema.update()
            run.step_done(loss=loss)

ema.copy_to()
print(f"averaged loss {float(tf.reduce_mean(tf.square(model(x) - y))):.7f}")
