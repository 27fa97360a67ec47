"""Noise in the inputs whose strength is a setting in argparse's namespace, and falls after each epoch."""

import argparse

import numpy as np

from worker.files import FilesRun, prepare

prepare(34)
parser = argparse.ArgumentParser()
parser.add_argument("--noise", type=float, default=0.5)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()
x = np.random.normal(size=(24, 4))
y = x @ np.arange(4.0)


class Linear:
    versions = {}
    topology = {}
    w = np.zeros(4)

    def write(self, folder):
        np.save(folder / "w.npy", self.w)

    def read(self, folder):
        self.w = np.load(folder / "w.npy")

    def read_foreign(self, prefix):
        raise NotImplementedError


model = Linear()
with FilesRun(model, directory="checkpoints") as run:
    for epoch in run.epochs(args.epochs):
        for rows in run.order(np.random.permutation(24), batch_size=12):
            noisy = x[rows] + args.noise * np.random.normal(size=(len(rows), 4))
            error = noisy @ model.w - y[rows]
            model.w = model.w - 0.1 * noisy.T @ error / len(rows)
            run.step_done(loss=float((error**2).mean()))
        args.noise *= 0.5

print(f"w {model.w.sum():.12f}")
