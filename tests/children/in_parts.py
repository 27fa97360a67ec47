"""Training without TensorFlow in two runs of one script, the second of which goes on from the end of the first.

STEPS, SECOND: of the first run, and of the second (0: there is none). STEP_S: how long a step takes. SWALLOWS: the
script catches the exit of a stop.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from worker.files import FilesRun

STEPS = int(os.environ.get("STEPS", "20"))
SECOND = int(os.environ.get("SECOND", "100000"))
STEP_S = float(os.environ.get("STEP_S", "0.01"))
CAUGHT = (BaseException,) if "SWALLOWS" in os.environ else ()


class Weights:
    """The state: an array."""

    versions: Mapping[str, str] = {}
    topology: Mapping[str, str | int | bool] = {}

    def __init__(self) -> None:
        self.array = np.zeros(10)

    def write(self, folder: Path) -> None:
        np.save(folder / "weights.npy", self.array)

    def read(self, folder: Path) -> None:
        self.array = np.load(folder / "weights.npy")

    def read_foreign(self, prefix: Path) -> int:
        raise NotImplementedError


def train(state: Weights, until: int) -> None:
    with FilesRun(state, total_steps=until) as run, contextlib.suppress(*CAUGHT):
        while not run.reached:
            time.sleep(STEP_S)
            state.array += 1 / (run.step + 1)
            run.step_done(epoch=0, batch=run.step, loss=float(state.array[0]))


state = Weights()
train(state, STEPS)
if SECOND:
    train(state, STEPS + SECOND)
