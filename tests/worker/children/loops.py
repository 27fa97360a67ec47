"""Trains one loop over indices, numbers or episodes to its end, with NumPy and `worker.files.FilesRun`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from worker.files import FilesRun, Unfit, prepare


class Weights:
    """A weight, and how often it was trained."""

    versions: Mapping[str, str] = {}
    topology: Mapping[str, str | int | bool] = {}

    def __init__(self) -> None:
        self.values = np.ones(4)
        self.steps = 0

    def train(self, *numbers: float) -> None:
        """One step: the order of the numbers counts."""
        for number in numbers:
            self.values = np.roll(self.values, 1) * 0.9 + np.sin(number + np.random.normal(size=4))
        self.steps += 1

    def change(self) -> None:
        """What the tail of an epoch does."""
        self.values = self.values * 0.5 + np.random.normal(size=4)

    def write(self, folder: Path) -> None:
        (folder / "weights.json").write_text(json.dumps([self.steps, self.values.tolist()]))

    def read(self, folder: Path) -> None:
        self.steps, values = json.loads((folder / "weights.json").read_text())
        self.values = np.array(values)

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint")


def indices(run: FilesRun, weights: Weights) -> None:
    for epoch in run.epochs(3):
        for i in run.order(np.random.permutation(8)):
            weights.train(i, epoch)
            run.step_done()
        weights.change()


def slices(run: FilesRun, weights: Weights) -> None:
    for _ in run.epochs(3):
        order = np.random.permutation(8)
        for several in run.order(order, batch_size=3):
            weights.train(*several)
            run.step_done()
        weights.change()


def episodes(run: FilesRun, weights: Weights) -> None:
    for episode in run.epochs(12):
        weights.train(episode)
        run.step_done()
        weights.change()


def numbers(run: FilesRun, weights: Weights) -> None:
    for number in run.range(2, 26, 2):
        weights.train(number)
        run.step_done()


LOOP = indices


def main() -> None:
    prepare(seed=4)
    weights = Weights()
    with FilesRun(weights, directory="checkpoints", interval="1 steps", strict=True) as run:
        LOOP(run, weights)
    sys.stdout.write(f"{weights.steps} steps\n")


if __name__ == "__main__":
    main()
