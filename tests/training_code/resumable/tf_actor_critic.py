"""An actor-critic loop in the shape of TensorFlow's tutorial: episodes of its own, a running reward, no dataset."""

import collections

import numpy as np
import tensorflow as tf

import worker

worker.strategy()
seed = 42
tf.random.set_seed(seed)
np.random.seed(seed)


class Corridor:
    """An environment with gym's methods: reach the right end of a corridor in which the wind blows left."""

    length = 8

    def reset(self):
        self.position = 3
        return self.state()

    def step(self, action):
        wind = np.random.random() < 0.2
        self.position += (1 if action == 1 else -1) - (1 if wind else 0)
        done = self.position <= 0 or self.position >= self.length
        reward = 10.0 if self.position >= self.length else -0.1
        return self.state(), reward, done

    def state(self):
        return np.array([self.position / self.length, 1.0], dtype=np.float32)


class ActorCritic(tf.keras.Model):
    def __init__(self, num_actions, num_hidden_units):
        super().__init__()
        self.common = tf.keras.layers.Dense(num_hidden_units, activation="relu")
        self.actor = tf.keras.layers.Dense(num_actions)
        self.critic = tf.keras.layers.Dense(1)

    def call(self, inputs):
        x = self.common(inputs)
        return self.actor(x), self.critic(x)


env = Corridor()
model = ActorCritic(2, 16)
model(tf.keras.Input((2,)))
optimizer = tf.keras.optimizers.Adam(learning_rate=0.01)
huber_loss = tf.keras.losses.Huber(reduction="sum")


def run_episode(max_steps):
    action_probs, values, rewards = [], [], []
    state = env.reset()
    for _ in range(max_steps):
        action_logits, value = model(tf.expand_dims(state, 0))
        action_probs_t = tf.nn.softmax(action_logits)
        action = int(tf.random.categorical(action_logits, 1)[0, 0])
        values.append(tf.squeeze(value))
        action_probs.append(action_probs_t[0, action])
        state, reward, done = env.step(action)
        rewards.append(reward)
        if done:
            break
    return tf.stack(action_probs), tf.stack(values), np.array(rewards, dtype=np.float32)


def get_expected_return(rewards, gamma):
    returns, discounted_sum = [], 0.0
    for reward in rewards[::-1]:
        discounted_sum = reward + gamma * discounted_sum
        returns.append(discounted_sum)
    returns = np.array(returns[::-1], dtype=np.float32)
    return (returns - returns.mean()) / (returns.std() + 1e-6)


def train_step(gamma, max_steps_per_episode):
    with tf.GradientTape() as tape:
        action_probs, values, rewards = run_episode(max_steps_per_episode)
        returns = tf.constant(get_expected_return(rewards, gamma))
        advantage = returns - values
        actor_loss = -tf.math.reduce_sum(tf.math.log(action_probs) * advantage)
        loss = actor_loss + huber_loss(values, returns)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return float(rewards.sum())


min_episodes_criterion = 40
max_episodes = 60
max_steps_per_episode = 30
reward_threshold = 9.9
gamma = 0.99

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
episodes_reward = collections.deque(maxlen=min_episodes_criterion)
running_reward = 0
with worker.Run(checkpoint, state={"rewards": episodes_reward}) as run:
    for i in range(run.step, max_episodes):
        episode_reward = train_step(gamma, max_steps_per_episode)

        episodes_reward.append(episode_reward)
        running_reward = float(np.mean(episodes_reward))

        if i % 10 == 0:
            print(f"episode {i}: reward {episode_reward:.2f}, running reward {running_reward:.2f}")

        run.step_done(reward=episode_reward)
        if running_reward > reward_threshold and i >= min_episodes_criterion:
            break

print(f"Solved at episode {i}: average reward: {running_reward:.2f}!")
