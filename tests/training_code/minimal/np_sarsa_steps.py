"""SARSA on a windy grid: each action is a step of the run, so a restart may come in the middle of an episode."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(5)
wind = [0, 0, 1, 1, 0]


class WindyGrid:
    def __init__(self):
        self.pos = (0, 2)

    def reset(self):
        self.pos = (0, 2)
        return self.pos

    def step(self, action):
        x, y = self.pos
        dx, dy = [(1, 0), (-1, 0), (0, 1), (0, -1)][action]
        gust = wind[x] if np.random.rand() < 0.8 else 0
        self.pos = (min(max(x + dx, 0), 4), min(max(y + dy + gust, 0), 4))
        return self.pos, -1.0, self.pos == (4, 2)


class Agent:
    versions = {}
    topology = {}

    def __init__(self):
        self.q = np.zeros((5, 5, 4))

    def act(self, state, eps=0.2):
        return np.random.randint(4) if np.random.rand() < eps else int(self.q[state].argmax())

    def write(self, folder):
        np.save(folder / "q.npy", self.q)

    def read(self, folder):
        self.q = np.load(folder / "q.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


env, agent = WindyGrid(), Agent()
with FilesRun(agent, directory="checkpoints", total_steps=40) as run:
    while not run.reached:
        state = env.reset()
        action = agent.act(state)
        done = False
        while not done and not run.reached:
            next_state, reward, done = env.step(action)
            next_action = agent.act(next_state)
            target = reward + 0.9 * agent.q[next_state][next_action] * (not done)
            agent.q[state][action] += 0.5 * (target - agent.q[state][action])
            state, action = next_state, next_action
            run.step_done(epoch=0, batch=run.step + 1, reward=reward)

print(f"Q {agent.q.sum():.12f}")
