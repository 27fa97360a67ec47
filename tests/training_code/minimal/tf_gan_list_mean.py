"""A GAN on points whose loop prints the means of its lists of losses after each epoch."""

import numpy as np
import tensorflow as tf

import worker

worker.strategy()
tf.keras.utils.set_random_seed(20)
generator = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(2)])
discriminator = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
gen_opt, disc_opt = tf.keras.optimizers.Adam(1e-3), tf.keras.optimizers.Adam(1e-3)
gen_opt.build(generator.trainable_variables)
disc_opt.build(discriminator.trainable_variables)
bce = tf.keras.losses.BinaryCrossentropy(from_logits=True)
dataset = tf.data.Dataset.from_tensor_slices(tf.random.normal((48, 2)) + 2.0).shuffle(48).batch(8)
seed = tf.random.normal((4, 3))


@tf.function
def train_step(images):
    noise = tf.random.normal((tf.shape(images)[0], 3))
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        real, fake = discriminator(images), discriminator(generator(noise))
        gen_loss = bce(tf.ones_like(fake), fake)
        disc_loss = bce(tf.ones_like(real), real) + bce(tf.zeros_like(fake), fake)
    gen_grads = gen_tape.gradient(gen_loss, generator.trainable_variables)
    disc_grads = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    gen_opt.apply_gradients(zip(gen_grads, generator.trainable_variables))
    disc_opt.apply_gradients(zip(disc_grads, discriminator.trainable_variables))
    return gen_loss, disc_loss


def train(dataset, epochs):
    means = []
    checkpoint = tf.train.Checkpoint(g=generator, d=discriminator, gen_opt=gen_opt, disc_opt=disc_opt)
    with worker.Run(checkpoint, directory="checkpoints") as run:
        for epoch in run.epochs(epochs):
            gen_losses, disc_losses = [], []
            for image_batch in run.batches(dataset):
                gen_loss, disc_loss = train_step(image_batch)
                gen_losses.append(float(gen_loss))
                disc_losses.append(float(disc_loss))
                run.step_done(gen_loss=gen_loss)
            print(f"epoch {epoch + 1}: {np.mean(gen_losses):.4f}, {np.mean(disc_losses):.4f}")
            means.append(float(np.mean(gen_losses)))
    return means


print("means", " ".join(f"{mean:.7f}" for mean in train(dataset, 4)), f"{float(generator(seed)[0, 0]):.7f}")
