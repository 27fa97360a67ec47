"""The shape of PyTorch's DQN tutorial: a replay memory of named tuples, steps_done for epsilon, a target network."""

import math
import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim

import worker.torch

worker.torch.prepare(77)
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        """Save a transition"""
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


class Cart:
    """An environment with gym's methods, whose randomness is NumPy's."""

    def reset(self):
        self.state = np.random.uniform(-0.05, 0.05, 3).astype(np.float32)
        self.t = 0
        return self.state.copy(), {}

    def step(self, action):
        self.state += np.float32([0.1, -0.05, 0.02]) * (1 if action else -1) + np.random.normal(0, 0.01, 3)
        self.t += 1
        return self.state.copy(), 1.0, bool(abs(self.state).max() > 0.3), self.t >= 8, {}


class DQN(nn.Module):
    def __init__(self, n_observations, n_actions):
        super().__init__()
        self.layer1 = nn.Linear(n_observations, 12)
        self.layer2 = nn.Linear(12, n_actions)

    def forward(self, x):
        return self.layer2(torch.relu(self.layer1(x)))


BATCH_SIZE, GAMMA, TAU, LR = 8, 0.99, 0.05, 1e-2
EPS_START, EPS_END, EPS_DECAY = 0.9, 0.05, 30
env = Cart()
policy_net, target_net = DQN(3, 2), DQN(3, 2)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=LR, amsgrad=True)
memory = ReplayMemory(100)
steps_done = 0


def select_action(state):
    global steps_done
    sample = random.random()
    eps_threshold = EPS_END + (EPS_START - EPS_END) * math.exp(-1.0 * steps_done / EPS_DECAY)
    steps_done += 1
    if sample > eps_threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    non_final_mask = torch.tensor([s is not None for s in batch.next_state])
    state_batch, action_batch = torch.cat(batch.state), torch.cat(batch.action)
    state_action_values = policy_net(state_batch).gather(1, action_batch)
    next_state_values = torch.zeros(BATCH_SIZE)
    if non_final_mask.any():
        with torch.no_grad():
            following = torch.cat([s for s in batch.next_state if s is not None])
            next_state_values[non_final_mask] = target_net(following).max(1).values
    expected = next_state_values * GAMMA + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()


num_episodes = 16
with worker.torch.Run(policy=policy_net, target=target_net, optimizer=optimizer, directory="checkpoints") as run:
    for i_episode in range(run.step, num_episodes):
        observation, _ = env.reset()
        state = torch.tensor(observation).unsqueeze(0)
        for t in range(100):
            action = select_action(state)
            observation, reward, terminated, truncated, _ = env.step(action.item())
            next_state = None if terminated else torch.tensor(observation).unsqueeze(0)
            memory.push(state, action, next_state, torch.tensor([reward]))
            state = next_state
            optimize_model()
            with torch.no_grad():
                for target, policy in zip(target_net.parameters(), policy_net.parameters()):
                    target.copy_(policy * TAU + target * (1 - TAU))
            if terminated or truncated:
                break
        run.step_done(duration=t + 1)

print(f"{steps_done} steps, {len(memory)} transitions, {sum(p.sum() for p in policy_net.parameters()).item():.9f}")
