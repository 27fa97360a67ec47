"""A character model whose GRU states are passed on from batch to batch by the loop."""

import tensorflow as tf

import worker

worker.strategy()
tf.random.set_seed(3)
vocab_size, batch_size, length = 11, 4, 6
text = tf.random.uniform((batch_size, 6 * length + 1), maxval=vocab_size, dtype=tf.int64)
pieces = [(text[:, i : i + length], text[:, i + 1 : i + length + 1]) for i in range(0, 6 * length, length)]
dataset = tf.data.Dataset.from_tensor_slices(([a for a, _ in pieces], [b for _, b in pieces]))


class MyModel(tf.keras.Model):
    def __init__(self, vocab_size, embedding_dim, rnn_units):
        super().__init__()
        self.embedding = tf.keras.layers.Embedding(vocab_size, embedding_dim)
        self.gru = tf.keras.layers.GRU(rnn_units, return_sequences=True, return_state=True)
        self.dense = tf.keras.layers.Dense(vocab_size)

    def call(self, inputs, states=None):
        x, states = self.gru(self.embedding(inputs), initial_state=states)
        return self.dense(x), states


model = MyModel(vocab_size, 6, 8)
model(text[:, :length])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function
def train_step(inputs, labels, states):
    with tf.GradientTape() as tape:
        predictions, states = model(inputs, states)
        loss = loss_fn(labels, predictions)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
    return loss, states


with worker.Run(tf.train.Checkpoint(model=model, optimizer=optimizer), directory="checkpoints") as run:
    for epoch in run.epochs(4):
        run.state["states"] = tf.zeros((batch_size, 8))
        for inp, target in run.batches(dataset):
            loss, run.state["states"] = train_step(inp, target, run.state["states"])
            run.step_done(loss=loss)

print(f"weights {sum(float(tf.reduce_sum(w)) for w in model.trainable_variables):.6f}")
