"""`while True` with a counter of its own."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(2)


class Model:
    versions = {}
    topology = {}
    w = np.zeros(3)

    def write(self, folder):
        np.save(folder / "w.npy", self.w)

    def read(self, folder):
        self.w = np.load(folder / "w.npy")


model = Model()
x = np.random.default_rng(0).normal(size=(30, 3))
n_iter = 0
with FilesRun(model, directory="checkpoints") as run:
    while True:
        model.w += 0.1 / (1 + n_iter) * (x[n_iter % 30] - model.w)
        n_iter += 1
        run.step_done()
        if n_iter >= 40:
            break
print(f"{model.w.sum():.12f}")
