"""The shape of PyTorch's REINFORCE example: lists in the policy that each episode empties, a running reward."""

from itertools import count

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions import Categorical

import worker.torch

worker.torch.prepare(543)


class Balance:
    def reset(self):
        self.x = np.random.uniform(-0.1, 0.1, 2)
        return self.x.astype(np.float32)

    def step(self, action):
        self.x = self.x * 1.1 + np.array([0.05, -0.05]) * (1 if action else -1) + np.random.normal(0, 0.02, 2)
        return self.x.astype(np.float32), 1.0, bool(np.abs(self.x).max() > 0.4)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(2, 12)
        self.dropout = nn.Dropout(p=0.2)
        self.affine2 = nn.Linear(12, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return torch.softmax(self.affine2(torch.relu(self.dropout(self.affine1(x)))), dim=1)


policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
env = Balance()


def select_action(state):
    m = Categorical(policy(torch.from_numpy(state).unsqueeze(0)))
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    R, returns = 0, []
    for r in policy.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std(unbiased=False) + 1e-6)
    loss = torch.cat([-log_prob * R for log_prob, R in zip(policy.saved_log_probs, returns)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]


def main():
    running_reward = 10
    with worker.torch.Run(policy=policy, optimizer=optimizer, directory="checkpoints") as run:
        for i_episode in count(run.step + 1):
            state, ep_reward = env.reset(), 0
            for t in range(1, 20):
                action = select_action(state)
                state, reward, done = env.step(action)
                policy.rewards.append(reward)
                ep_reward += reward
                if done:
                    break
            running_reward = 0.05 * ep_reward + (1 - 0.05) * running_reward
            finish_episode()
            if i_episode % 10 == 0:
                print(f"Episode {i_episode}\tLast reward: {ep_reward:.2f}\tAverage reward: {running_reward:.2f}")
            run.step_done(reward=ep_reward)
            if i_episode >= 30:
                break
    print(f"running reward {running_reward:.9f}")


main()
