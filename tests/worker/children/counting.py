"""A job without TensorFlow that imports a module beside it: counts up and prints where it started."""

import sys
from pathlib import Path

from worker.files import FilesRun  # first, so that the daemon hears of what fails

import corpus  # type: ignore[import-not-found]  # isort: skip


import numpy as np


class Counter:
    versions = {"counting": "1"}  # noqa: RUF012
    topology: dict[str, str] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.value = np.zeros(1)

    def write(self, folder: Path) -> None:
        np.save(folder / "value.npy", self.value)

    def read(self, folder: Path) -> None:
        self.value = np.load(folder / "value.npy", allow_pickle=False)

    def read_foreign(self, prefix: Path) -> int:
        raise NotImplementedError


print("loaded", corpus.SIZE, flush=True)
counter = Counter()
with FilesRun(counter, total_steps=int(sys.argv[1])) as run:
    print("trains", corpus.SIZE, flush=True)
    while not run.reached:
        counter.value += 1
        run.step_done(epoch=0, batch=run.step, value=float(counter.value[0]))
