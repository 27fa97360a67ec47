"""Softmax regression in NumPy with the arguments of a command line and one loop over the epochs."""

import argparse

import numpy as np

from worker.files import FilesRun, prepare

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()

prepare(0)
x = np.random.randn(96, 8)
y = (x @ np.random.randn(8, 3)).argmax(axis=1)


class Weights:
    versions = {}
    topology = {}

    def __init__(self):
        self.w = np.zeros((8, 3))
        self.b = np.zeros(3)

    def write(self, folder):
        np.savez(folder / "weights.npz", w=self.w, b=self.b)

    def read(self, folder):
        with np.load(folder / "weights.npz") as saved:
            self.w, self.b = saved["w"], saved["b"]

    def read_foreign(self, prefix):
        raise NotImplementedError


weights = Weights()
with FilesRun(weights, directory="checkpoints") as run:
    for epoch in range(args.epochs):
        for i in range(0, len(x), args.batch_size):
            xb, yb = x[i : i + args.batch_size], y[i : i + args.batch_size]
            logits = xb @ weights.w + weights.b
            probs = np.exp(logits - logits.max(axis=1, keepdims=True))
            probs /= probs.sum(axis=1, keepdims=True)
            loss = -np.log(probs[np.arange(len(yb)), yb]).mean()
            grad = probs
            grad[np.arange(len(yb)), yb] -= 1
            weights.w -= args.lr * xb.T @ grad / len(yb)
            weights.b -= args.lr * grad.mean(axis=0)
            run.step_done(loss=loss)
        print(f"epoch {epoch}")

accuracy = ((x @ weights.w + weights.b).argmax(axis=1) == y).mean()
print(f"accuracy {accuracy:.4f}, weights {weights.w.sum():.12f}")
