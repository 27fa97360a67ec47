"""Tabular Q-learning on a frozen lake: one step of the run is an episode, and epsilon falls with each."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(11)
size, n_actions = 4, 4
holes, goal = {5, 7, 11, 12}, 15


class FrozenLake:
    def reset(self):
        self.s = 0
        return self.s

    def step(self, action):
        if np.random.rand() < 0.2:
            action = np.random.randint(n_actions)
        row, col = divmod(self.s, size)
        row += (action == 1) - (action == 3)
        col += (action == 2) - (action == 0)
        self.s = int(np.clip(row, 0, size - 1) * size + np.clip(col, 0, size - 1))
        return self.s, float(self.s == goal), self.s == goal or self.s in holes


class Table:
    versions = {}
    topology = {}
    q = np.zeros((size * size, n_actions))

    def write(self, folder):
        np.save(folder / "q.npy", self.q)

    def read(self, folder):
        self.q = np.load(folder / "q.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


env = FrozenLake()
table = Table()
alpha, gamma = 0.3, 0.95
decay = 0.97
n_episodes = 40

with FilesRun(table, directory="checkpoints", state={"epsilon": 1.0}) as run:
    for episode in range(run.step, n_episodes):
        state, total, done, steps = env.reset(), 0.0, False, 0
        while not done and steps < 50:
            if np.random.rand() < run.state["epsilon"]:
                action = np.random.randint(n_actions)
            else:
                action = int(table.q[state].argmax())
            next_state, reward, done = env.step(action)
            target = reward + gamma * table.q[next_state].max() * (not done)
            table.q[state, action] += alpha * (target - table.q[state, action])
            state, total, steps = next_state, total + reward, steps + 1
        run.state["epsilon"] = max(0.05, run.state["epsilon"] * decay)
        run.step_done(epoch=0, batch=episode + 1, reward=total, steps=steps)

print(f"epsilon {run.state['epsilon']:.6f}, Q {table.q.sum():.12f}")
