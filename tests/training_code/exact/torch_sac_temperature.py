"""Soft actor-critic: a temperature that is a tensor with an optimizer of its own, a running normalizer, an env wrapper."""

import copy

import numpy as np
import torch
from torch import nn

import worker.torch

worker.torch.prepare(37)


class Kept:
    def state_dict(self):
        return {k: v for k, v in vars(self).items() if k not in ("env", "rms")}

    def load_state_dict(self, state):
        vars(self).update(state)


class RunningMeanStd(Kept):
    def __init__(self, shape):
        self.mean, self.var, self.count = np.zeros(shape), np.ones(shape), 1e-4

    def update(self, x):
        delta = x - self.mean
        self.count += 1
        self.mean = self.mean + delta / self.count
        self.var = self.var + (delta * (x - self.mean) - self.var) / self.count


class Pendulum(Kept):
    def reset(self):
        self.th, self.thdot, self.t = np.random.uniform(-1, 1), 0.0, 0
        return np.array([np.cos(self.th), np.sin(self.th), self.thdot])

    def step(self, u):
        self.thdot += 0.1 * (np.sin(self.th) + u)
        self.th += 0.1 * self.thdot
        self.t += 1
        return np.array([np.cos(self.th), np.sin(self.th), self.thdot]), -(self.th**2), self.t % 9 == 0


class NormalizeObservation:
    def __init__(self, env):
        self.env = env
        self.rms = RunningMeanStd(3)

    def _normalize(self, obs):
        self.rms.update(obs)
        return ((obs - self.rms.mean) / np.sqrt(self.rms.var + 1e-8)).astype(np.float32)

    def reset(self):
        return self._normalize(self.env.reset())

    def step(self, action):
        obs, reward, done = self.env.step(action)
        return self._normalize(obs), reward, done


class Buffer(Kept):
    def __init__(self, size):
        self.obs, self.next = np.zeros((size, 3), np.float32), np.zeros((size, 3), np.float32)
        self.act, self.rew = np.zeros((size, 1), np.float32), np.zeros((size, 1), np.float32)
        self.ptr, self.size, self.max = 0, 0, size

    def store(self, o, a, r, n):
        self.obs[self.ptr], self.act[self.ptr], self.rew[self.ptr], self.next[self.ptr] = o, a, r, n
        self.ptr = (self.ptr + 1) % self.max
        self.size = min(self.size + 1, self.max)

    def sample(self, n):
        i = np.random.randint(0, self.size, n)
        return (torch.from_numpy(a[i]) for a in (self.obs, self.act, self.rew, self.next))


actor = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 2))
critic = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1))
critic_target = copy.deepcopy(critic)
log_alpha = torch.zeros(1, requires_grad=True)
pi_opt, q_opt = torch.optim.Adam(actor.parameters(), 3e-3), torch.optim.Adam(critic.parameters(), 3e-3)
alpha_opt = torch.optim.Adam([log_alpha], 3e-3)
env = NormalizeObservation(Pendulum())
buffer = Buffer(50)


def act(o):
    mean, log_std = actor(o).chunk(2, -1)
    std = log_std.clamp(-3, 1).exp()
    a = mean + std * torch.randn_like(mean)
    logp = torch.distributions.Normal(mean, std).log_prob(a)
    return torch.tanh(a), logp - torch.log(1 - torch.tanh(a) ** 2 + 1e-6)


o = env.reset()
parts = {
    "actor": actor,
    "critic": critic,
    "target": critic_target,
    "pi_opt": pi_opt,
    "q_opt": q_opt,
    "alpha_opt": alpha_opt,
}
state = {"o": o, "buffer": buffer, "env": env.env, "rms": env.rms, "log_alpha": log_alpha}
with worker.torch.Run(**parts, state=state, directory="checkpoints") as run:
    o = run.state["o"]
    for t in run.range(60):
        with torch.no_grad():
            a, _ = act(torch.from_numpy(o))
        n, r, d = env.step(a.item())
        buffer.store(o, a.numpy(), r, n)
        o = run.state["o"] = env.reset() if d else n
        if t > 0:
            bo, ba, br, bn = buffer.sample(8)
            alpha = log_alpha.exp().detach()
            with torch.no_grad():
                na, nlogp = act(bn)
                y = br + 0.95 * (critic_target(torch.cat([bn, na], 1)) - alpha * nlogp)
            q_loss = ((critic(torch.cat([bo, ba], 1)) - y) ** 2).mean()
            q_opt.zero_grad()
            q_loss.backward()
            q_opt.step()
            pa, logp = act(bo)
            pi_loss = (alpha * logp - critic(torch.cat([bo, pa], 1))).mean()
            pi_opt.zero_grad()
            pi_loss.backward()
            pi_opt.step()
            alpha_loss = -(log_alpha * (logp.detach() - 1)).mean()
            alpha_opt.zero_grad()
            alpha_loss.backward()
            alpha_opt.step()
            with torch.no_grad():
                for p, pt in zip(critic.parameters(), critic_target.parameters()):
                    pt.data.mul_(0.95).add_(0.05 * p.data)
        run.step_done(r=r)
print(f"{log_alpha.item():.9f} {sum(p.sum() for p in actor.parameters()).item():.9f} {env.rms.count:.4f}")
