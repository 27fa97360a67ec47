"""A small model in NumPy and its data, for scripts that each make one mistake."""

import numpy as np

from worker.files import prepare

EPOCHS, BATCHES, BATCH_SIZE = 4, 6, 4

prepare(seed=1)
inputs = np.random.default_rng(0).normal(size=(BATCHES * BATCH_SIZE, 3))
labels = inputs.sum(1) + 0.1


class Model:
    """A linear model with momentum, which writes and reads its own state."""

    versions: dict[str, str] = {}
    topology: dict[str, str] = {}

    def __init__(self) -> None:
        self.weights, self.momentum = np.zeros(3), np.zeros(3)

    def write(self, folder) -> None:
        np.savez(folder / "model.npz", weights=self.weights, momentum=self.momentum)

    def read(self, folder) -> None:
        found = np.load(folder / "model.npz")
        self.weights, self.momentum = found["weights"], found["momentum"]

    def read_foreign(self, prefix) -> int:
        raise NotImplementedError

    def step(self, rows, rate: float = 0.02) -> float:
        """One step on the examples of these numbers. Returns the loss."""
        errors = inputs[rows] @ self.weights - labels[rows]
        self.momentum = 0.9 * self.momentum + errors @ inputs[rows] / len(errors)
        self.weights = self.weights - rate * self.momentum
        return float((errors**2).mean())


def rows_of(batch: int):
    """The numbers of the examples of a batch."""
    return np.arange(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
