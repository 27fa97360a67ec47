"""A network of layers in a list, whose `read` computes norms and transposes of the weights anew."""

import numpy as np

from worker.files import FilesRun, prepare

prepare(2)


class Layer:
    def __init__(self, n, m):
        self.w = np.random.normal(0, 0.5, (n, m))
        self.update_cache()

    def update_cache(self):
        self.norm = float(np.linalg.norm(self.w))
        self.wt = self.w.T / self.norm


class Net:
    versions = {}
    topology = {}

    def __init__(self):
        self.layers = [Layer(4, 6), Layer(6, 3), Layer(3, 1)]

    def forward(self, x):
        self.inputs = []
        for layer in self.layers:
            self.inputs.append(x)
            x = np.tanh(x @ layer.w / (1 + 0.1 * layer.norm))
        return x

    def step(self, x, y):
        error = self.forward(x) - y
        for layer, inputs in zip(reversed(self.layers), reversed(self.inputs)):
            gradient = inputs.T @ error / len(x)
            error = error @ layer.wt
            layer.w -= 0.1 * gradient
            layer.update_cache()
        return float((error**2).mean())

    def write(self, folder):
        for number, layer in enumerate(self.layers):
            np.save(folder / f"w{number}.npy", layer.w)

    def read(self, folder):
        for number, layer in enumerate(self.layers):
            layer.w = np.load(folder / f"w{number}.npy")
            layer.update_cache()


net = Net()
x = np.random.default_rng(0).normal(size=(40, 4))
y = x.sum(1, keepdims=True)
with FilesRun(net, directory="checkpoints") as run:
    for epoch in run.epochs(4):
        for i in run.order(np.random.permutation(40), 8):
            run.step_done(loss=net.step(x[i], y[i]))
print(f"{sum(layer.norm for layer in net.layers):.12f}")
