"""REINFORCE with preallocated arrays of NumPy that each iteration fills anew, in the loop and in a function."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(4)
T, N = 6, 3
obs = np.zeros((T, N))
acts = np.zeros((T, N), dtype=int)
rews = np.empty((T, N))
returns = np.zeros((T, N))
mask = np.ones((T, N), dtype=bool)
noise = np.zeros(T)


class Policy:
    versions = {}
    topology = {}
    w = np.zeros(2)

    def write(self, folder):
        np.save(folder / "w.npy", self.w)

    def read(self, folder):
        self.w = np.load(folder / "w.npy")


policy = Policy()


def compute_returns(gamma=0.9):
    running = np.zeros(N)
    for t in reversed(range(T)):
        running = rews[t] + gamma * running
        returns[t] = running


with FilesRun(policy, directory="checkpoints") as run:
    for iteration in run.range(30):
        mask[:] = True
        noise[...] = np.random.normal(size=T)
        state = np.random.normal(size=N)
        for t in range(T):
            obs[t] = state
            p = 1 / (1 + np.exp(-(policy.w[0] * state + policy.w[1])))
            acts[t] = np.random.rand(N) < p
            rews[t] = np.where(acts[t] == (state > 0), 1.0, 0.0) + 0.01 * noise[t]
            mask[t] = np.abs(state) < 2
            state = 0.9 * state + np.random.normal(0, 0.1, N)
        compute_returns()
        advantage = (returns - returns.mean()) * mask
        p = 1 / (1 + np.exp(-(policy.w[0] * obs + policy.w[1])))
        policy.w += 0.01 * np.array([(advantage * (acts - p) * obs).sum(), (advantage * (acts - p)).sum()])
        run.step_done(reward=float(rews.mean()))
print(f"{policy.w.sum():.12f}")
