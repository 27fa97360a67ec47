"""Values of the loop in a tf.train.experimental.PythonState, which the checkpoint tracks."""

import json

import tensorflow as tf

import worker

strategy = worker.strategy()
tf.random.set_seed(4)


class LoopState(tf.train.experimental.PythonState):
    def __init__(self):
        self.best = float("inf")
        self.seen = 0
        self.history = []

    def serialize(self):
        return json.dumps({"best": self.best, "seen": self.seen, "history": self.history})

    def deserialize(self, serialized):
        self.__dict__.update(json.loads(serialized))


model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(6, "relu"), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.RMSprop(0.01)
optimizer.build(model.trainable_variables)
state = LoopState()
data = tf.data.Dataset.from_tensor_slices(tf.random.normal((32, 3))).shuffle(32).batch(8)


@tf.function
def train_step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(batch) - tf.reduce_max(batch, axis=1, keepdims=True)) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss


checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, state=state)
with worker.Run(checkpoint, strategy=strategy, directory="checkpoints") as run:
    for epoch in run.epochs(6):
        for batch in run.batches(data):
            loss = float(train_step(batch))
            state.seen += int(batch.shape[0])
            state.best = min(state.best, loss)
            state.history.append(round(loss, 6))
            run.step_done(loss=loss)

print(state.seen, f"{state.best:.7f}", len(state.history), f"{sum(state.history):.6f}")
