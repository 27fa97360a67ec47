"""The job of bench.mirror: one array of random numbers, and steps of fixed work: MEGABYTES STEP_S.

Writes a line with the time of each step into the file STEPS of the environment, if it is set.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from worker.files import FilesRun


class State:
    """What is saved: a part of it changes in each step."""

    versions, topology = {"bench": "1"}, {"kind": "mirror"}

    def __init__(self, megabytes: int) -> None:
        self.values = np.random.default_rng(1).random(megabytes * 125_000)

    def write(self, folder: Path) -> None:
        self.values.tofile(folder / "values")

    def read(self, folder: Path) -> None:
        self.values = np.fromfile(folder / "values")

    def read_foreign(self, prefix: Path) -> None:
        raise NotImplementedError


def main(megabytes: int, step_s: float) -> None:
    state = State(megabytes)
    log = open(os.environ["STEPS"], "a", buffering=1) if "STEPS" in os.environ else None  # noqa: SIM115 - to the end
    work = np.random.default_rng(2).random((256, 256))
    with FilesRun(state, total_steps=1_000_000) as run:
        while not run.reached:
            until = time.monotonic() + step_s
            while time.monotonic() < until:  # a step keeps one core busy
                work = np.tanh(work @ work.T / 256.0)
            state.values[run.step % len(state.values)] = run.step
            run.step_done(epoch=0, batch=run.step)
            if log is not None:
                log.write(f"{time.time()}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
