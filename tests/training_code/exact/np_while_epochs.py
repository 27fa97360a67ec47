"""A two-layer network in NumPy with momentum, whose loop counts its epochs itself."""

import argparse

import numpy as np

from worker.files import FilesRun, prepare

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
args = parser.parse_args()

prepare(3)
X = np.random.randn(64, 6)
T = np.sin(X.sum(axis=1, keepdims=True))


class Network:
    versions = {}
    topology = {}

    def __init__(self, inputs, hidden):
        self.params = {
            "w1": np.random.randn(inputs, hidden) * 0.5,
            "b1": np.zeros(hidden),
            "w2": np.random.randn(hidden, 1) * 0.5,
            "b2": np.zeros(1),
        }
        self.velocity = {name: np.zeros_like(value) for name, value in self.params.items()}

    def forward(self, x):
        self.hidden = np.tanh(x @ self.params["w1"] + self.params["b1"])
        return self.hidden @ self.params["w2"] + self.params["b2"]

    def backward(self, x, error):
        back = error @ self.params["w2"].T * (1 - self.hidden**2)
        return {"w1": x.T @ back, "b1": back.sum(0), "w2": self.hidden.T @ error, "b2": error.sum(0)}

    def update(self, grads, lr=0.01, momentum=0.9):
        for name, grad in grads.items():
            self.velocity[name] = momentum * self.velocity[name] - lr * grad / len(X)
            self.params[name] += self.velocity[name]

    def write(self, folder):
        np.savez(folder / "params.npz", **self.params)
        np.savez(folder / "velocity.npz", **self.velocity)

    def read(self, folder):
        for name, arrays in (("params", self.params), ("velocity", self.velocity)):
            with np.load(folder / f"{name}.npz") as saved:
                arrays.update({key: saved[key] for key in saved})

    def read_foreign(self, prefix):
        raise NotImplementedError


net = Network(6, 10)
with FilesRun(net, directory="checkpoints") as run:
    while run.step < args.epochs:
        error = net.forward(X) - T
        loss = float((error**2).mean())
        net.update(net.backward(X, error))
        run.step_done(epoch=run.step + 1, batch=0, loss=loss)

print(f"loss {((net.forward(X) - T) ** 2).mean():.12f}")
