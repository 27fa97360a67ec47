"""A variational autoencoder trained by fit, with a callback that raises self.model.beta after each batch."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

import worker.keras

worker.strategy()
keras.utils.set_random_seed(6)


class BetaVAE(keras.Model):
    def __init__(self, latent=2, **kwargs):
        super().__init__(**kwargs)
        self.encoder = layers.Dense(2 * latent)
        self.decoder = layers.Dense(8)
        self.beta = 0.0
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        mean, log_var = ops.split(self.encoder(x), 2, axis=1)
        z = mean + keras.random.normal(ops.shape(mean), seed=self.seeds) * ops.exp(0.5 * log_var)
        kl = -0.5 * ops.mean(ops.sum(1 + log_var - mean**2 - ops.exp(log_var), axis=1))
        self.add_loss(self.beta * kl)
        return self.decoder(z)


class BetaAnnealing(keras.callbacks.Callback):
    def __init__(self, epochs):
        super().__init__()
        self.epochs = epochs

    def on_train_batch_end(self, batch, logs=None):
        self.model.beta = min(1.0, self.model.beta + 1.0 / self.epochs)


data = np.random.normal(size=(32, 8)).astype("float32")
vae = BetaVAE()
vae.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", run_eagerly=True)
worker.keras.fit(
    vae, data, data, epochs=4, batch_size=8, callbacks=[BetaAnnealing(12)], verbose=0, directory="checkpoints"
)
print(f"beta {float(vae.beta):.6f}, weights {sum(float(tf.reduce_sum(w)) for w in vae.trainable_variables):.6f}")
