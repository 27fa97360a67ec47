"""A restricted Boltzmann machine with persistent contrastive divergence: the chain goes on from step to step."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(2)
data = (np.random.rand(40, 12) < np.linspace(0.1, 0.9, 12)).astype(float)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class RBM:
    versions = {}
    topology = {}

    def __init__(self, visible, hidden, particles=8):
        self.W = np.random.randn(visible, hidden)
        self.a = np.zeros(visible)
        self.b = np.zeros(hidden)
        self.chain = np.random.rand(particles, visible).round()

    def sample_h(self, v):
        p = sigmoid(v @ self.W + self.b)
        return p, (np.random.rand(*p.shape) < p).astype(float)

    def sample_v(self, h):
        p = sigmoid(h @ self.W.T + self.a)
        return (np.random.rand(*p.shape) < p).astype(float)

    def update(self, v, lr=0.1, k=1):
        positive, _ = self.sample_h(v)
        for _ in range(k):
            self.chain = self.sample_v(self.sample_h(self.chain)[1])
        negative, _ = self.sample_h(self.chain)
        self.W += lr * (v.T @ positive / len(v) - self.chain.T @ negative / len(self.chain))
        self.a += lr * (v.mean(0) - self.chain.mean(0))
        self.b += lr * (positive.mean(0) - negative.mean(0))

    def write(self, folder):
        np.savez(folder / "rbm.npz", W=self.W, a=self.a, b=self.b)

    def read(self, folder):
        with np.load(folder / "rbm.npz") as saved:
            self.W, self.a, self.b = saved["W"], saved["a"], saved["b"]

    def read_foreign(self, prefix):
        raise NotImplementedError


rbm = RBM(12, 5)
with FilesRun(rbm, directory="checkpoints", total_steps=30) as run:
    while not run.reached:
        batch = data[np.random.randint(0, len(data), 10)]
        rbm.update(batch)
        run.step_done(epoch=0, batch=run.step + 1, energy=float((batch @ rbm.W).sum()))

print(f"weights {rbm.W.sum():.12f}, {np.abs(rbm.W).sum():.12f}")
