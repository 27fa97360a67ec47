"""PPO in one file as cleanrl has it: preallocated storage, several environments, an annealed rate."""

import random
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import worker.torch


@dataclass
class Args:
    seed: int = 1
    num_envs: int = 3
    num_steps: int = 8
    num_iterations: int = 8
    learning_rate: float = 3e-3
    update_epochs: int = 2
    num_minibatches: int = 2
    gamma: float = 0.98
    gae_lambda: float = 0.9
    clip_coef: float = 0.2


args = Args()
worker.torch.prepare(args.seed)


class Walk:
    def reset(self):
        self.s = np.random.uniform(-1, 1, 3).astype(np.float32)
        self.t = 0
        return self.s.copy()

    def step(self, action):
        self.s = (0.9 * self.s + (0.2 if action else -0.2)).astype(np.float32)
        self.t += 1
        return self.s.copy(), -float(abs(self.s).sum()), self.t >= 6


class VectorEnv:
    def __init__(self, n):
        self.envs = [Walk() for _ in range(n)]

    def state_dict(self):
        return {"envs": [(env.s.copy(), env.t) for env in self.envs]}

    def load_state_dict(self, state):
        for env, (env.s, env.t) in zip(self.envs, state["envs"]):
            pass

    def reset(self):
        return np.stack([env.reset() for env in self.envs])

    def step(self, actions):
        obs, rewards, dones = [], [], []
        for env, action in zip(self.envs, actions):
            o, r, d = env.step(action)
            if d:
                o = env.reset()
            obs.append(o)
            rewards.append(r)
            dones.append(d)
        return np.stack(obs), np.array(rewards, dtype=np.float32), np.array(dones)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 1))
        self.actor = nn.Sequential(nn.Linear(3, 12), nn.Tanh(), nn.Linear(12, 2))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


envs = VectorEnv(args.num_envs)
agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)

obs = torch.zeros((args.num_steps, args.num_envs, 3))
actions = torch.zeros((args.num_steps, args.num_envs))
logprobs = torch.zeros((args.num_steps, args.num_envs))
rewards = torch.zeros((args.num_steps, args.num_envs))
dones = torch.zeros((args.num_steps, args.num_envs))
values = torch.zeros((args.num_steps, args.num_envs))

state = {
    "global_step": 0,
    "next_obs": torch.Tensor(envs.reset()),
    "next_done": torch.zeros(args.num_envs),
    "envs": envs,
}
with worker.torch.Run(agent=agent, optimizer=optimizer, state=state, directory="checkpoints") as run:
    for iteration in range(run.step + 1, args.num_iterations + 1):
        next_obs, next_done = run.state["next_obs"], run.state["next_done"]
        frac = 1.0 - (iteration - 1.0) / args.num_iterations
        optimizer.param_groups[0]["lr"] = frac * args.learning_rate
        for step in range(0, args.num_steps):
            run.state["global_step"] += args.num_envs
            obs[step] = next_obs
            dones[step] = next_done
            with torch.no_grad():
                action, logprob, _, value = agent.get_action_and_value(next_obs)
                values[step] = value.flatten()
            actions[step] = action
            logprobs[step] = logprob
            next_obs, reward, next_done = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs, next_done = torch.Tensor(next_obs), torch.Tensor(next_done)
        run.state["next_obs"], run.state["next_done"] = next_obs, next_done
        with torch.no_grad():
            next_value = agent.get_value(next_obs).reshape(1, -1)
            advantages = torch.zeros_like(rewards)
            lastgaelam = 0
            for t in reversed(range(args.num_steps)):
                if t == args.num_steps - 1:
                    nextnonterminal = 1.0 - next_done
                    nextvalues = next_value
                else:
                    nextnonterminal = 1.0 - dones[t + 1]
                    nextvalues = values[t + 1]
                delta = rewards[t] + args.gamma * nextvalues * nextnonterminal - values[t]
                advantages[t] = lastgaelam = delta + args.gamma * args.gae_lambda * nextnonterminal * lastgaelam
            returns = advantages + values
        b_obs = obs.reshape((-1, 3))
        b_logprobs, b_actions = logprobs.reshape(-1), actions.reshape(-1)
        b_advantages, b_returns = advantages.reshape(-1), returns.reshape(-1)
        for epoch in range(args.update_epochs):
            b_inds = np.random.permutation(args.num_envs * args.num_steps)
            for start in range(0, len(b_inds), 12):
                mb_inds = b_inds[start : start + 12]
                _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions.long()[mb_inds])
                ratio = (newlogprob - b_logprobs[mb_inds]).exp()
                adv = b_advantages[mb_inds]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg_loss = torch.max(
                    -adv * ratio, -adv * torch.clamp(ratio, 1 - args.clip_coef, 1 + args.clip_coef)
                ).mean()
                v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
                loss = pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        run.step_done(loss=loss.item())
print(f"{run.state['global_step']} {sum(p.sum() for p in agent.parameters()).item():.9f}")
