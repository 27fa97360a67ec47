"""The shape of Keras' DDPG example: a ring buffer of arrays, Ornstein-Uhlenbeck noise, two target networks."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

import worker

worker.strategy()
keras.utils.set_random_seed(9)


class OUActionNoise:
    def __init__(self, mean, std_deviation, theta=0.15, dt=1e-2):
        self.theta = theta
        self.mean = mean
        self.std_dev = std_deviation
        self.dt = dt
        self.x_prev = np.zeros_like(self.mean)

    def __call__(self):
        x = (
            self.x_prev
            + self.theta * (self.mean - self.x_prev) * self.dt
            + self.std_dev * np.sqrt(self.dt) * np.random.normal(size=self.mean.shape)
        )
        self.x_prev = x
        return x


class Buffer:
    def __init__(self, buffer_capacity=64, batch_size=8):
        self.buffer_capacity = buffer_capacity
        self.batch_size = batch_size
        self.buffer_counter = 0
        self.state_buffer = np.zeros((buffer_capacity, 2), np.float32)
        self.action_buffer = np.zeros((buffer_capacity, 1), np.float32)
        self.reward_buffer = np.zeros((buffer_capacity, 1), np.float32)
        self.next_state_buffer = np.zeros((buffer_capacity, 2), np.float32)

    def record(self, obs_tuple):
        index = self.buffer_counter % self.buffer_capacity
        self.state_buffer[index] = obs_tuple[0]
        self.action_buffer[index] = obs_tuple[1]
        self.reward_buffer[index] = obs_tuple[2]
        self.next_state_buffer[index] = obs_tuple[3]
        self.buffer_counter += 1

    def learn(self):
        record_range = min(self.buffer_counter, self.buffer_capacity)
        indices = np.random.choice(record_range, self.batch_size)
        update(self.state_buffer[indices], self.action_buffer[indices],
               self.reward_buffer[indices], self.next_state_buffer[indices])  # fmt: skip


class Pendulum:
    def reset(self):
        self.s = np.random.uniform(-1, 1, 2)
        return self.s.astype(np.float32)

    def step(self, action):
        self.s = 0.9 * self.s + np.array([0.1, 0.2]) * float(action[0]) + np.random.normal(0, 0.01, 2)
        return self.s.astype(np.float32), -float((self.s**2).sum())


def get_actor():
    return keras.Sequential([keras.Input((2,)), layers.Dense(8, "relu"), layers.Dense(1, "tanh")])


def get_critic():
    state, action = keras.Input((2,)), keras.Input((1,))
    hidden = layers.Dense(8, "relu")(layers.Concatenate()([state, action]))
    return keras.Model([state, action], layers.Dense(1)(hidden))


actor, critic, target_actor, target_critic = get_actor(), get_critic(), get_actor(), get_critic()
target_actor.set_weights(actor.get_weights())
target_critic.set_weights(critic.get_weights())
actor_optimizer, critic_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3)
actor_optimizer.build(actor.trainable_variables)
critic_optimizer.build(critic.trainable_variables)


@tf.function
def update(states, actions, rewards, next_states):
    with tf.GradientTape() as tape:
        y = rewards + 0.99 * target_critic([next_states, target_actor(next_states)])
        critic_loss = tf.reduce_mean(tf.square(y - critic([states, actions])))
    grads = tape.gradient(critic_loss, critic.trainable_variables)
    critic_optimizer.apply_gradients(zip(grads, critic.trainable_variables))
    with tf.GradientTape() as tape:
        actor_loss = -tf.reduce_mean(critic([states, actor(states)]))
    grads = tape.gradient(actor_loss, actor.trainable_variables)
    actor_optimizer.apply_gradients(zip(grads, actor.trainable_variables))
    for target, source in ((target_actor, actor), (target_critic, critic)):
        for a, b in zip(target.variables, source.variables):
            a.assign(b * 0.05 + a * 0.95)


env, ou_noise, buffer = Pendulum(), OUActionNoise(np.zeros(1), 0.2 * np.ones(1)), Buffer()
checkpoint = tf.train.Checkpoint(
    actor=actor, critic=critic, target_actor=target_actor, target_critic=target_critic,
    actor_optimizer=actor_optimizer, critic_optimizer=critic_optimizer,
)  # fmt: skip
with worker.Run(checkpoint, directory="checkpoints") as run:
    for ep in range(run.step, 12):
        prev_state, episodic_reward = env.reset(), 0.0
        for _ in range(6):
            action = np.clip(actor(prev_state[None]).numpy()[0] + ou_noise(), -1, 1)
            state, reward = env.step(action)
            buffer.record((prev_state, action, reward, state))
            episodic_reward += reward
            buffer.learn()
            prev_state = state
        run.step_done(reward=episodic_reward)

print(f"{buffer.buffer_counter} transitions, actor {sum(w.sum() for w in actor.get_weights()):.7f}")
