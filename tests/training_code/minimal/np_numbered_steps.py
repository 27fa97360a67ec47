"""Linear regression with Adam in NumPy: each epoch draws an order, and each step says its number."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(37)
x = np.random.randn(40, 3)
y = x @ np.array([0.5, -1.0, 2.0])
batch = 8


class Adam:
    versions = {}
    topology = {}

    def __init__(self, size):
        self.w, self.m, self.v, self.t = np.zeros(size), np.zeros(size), np.zeros(size), 0

    def step(self, grad, lr=0.05):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * grad
        self.v = 0.999 * self.v + 0.001 * grad**2
        self.w = self.w - lr * (self.m / (1 - 0.9**self.t)) / (np.sqrt(self.v / (1 - 0.999**self.t)) + 1e-8)

    def write(self, folder):
        np.savez(folder / "adam.npz", w=self.w, m=self.m, v=self.v, t=self.t)

    def read(self, folder):
        with np.load(folder / "adam.npz") as saved:
            self.w, self.m, self.v, self.t = saved["w"], saved["m"], saved["v"], int(saved["t"])

    def read_foreign(self, prefix):
        raise NotImplementedError


model = Adam(3)
with FilesRun(model, directory="checkpoints") as run:
    for epoch in run.epochs(6):
        order = np.random.permutation(len(x))
        for start in range(0, len(x), batch):
            rows = order[start : start + batch]
            error = x[rows] @ model.w - y[rows]
            model.step(2 * x[rows].T @ error / len(rows))
            run.step_done(epoch=epoch, batch=start // batch + 1, loss=(error**2).mean())

print(f"w {model.w.tolist()}")
