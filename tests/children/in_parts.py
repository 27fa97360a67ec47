"""Training without TensorFlow in two runs of one script, the second of which goes on from the end of the first.

STEPS, SECOND: of the first run, and of the second (0: there is none). STEP_S: how long a step takes. SWALLOWS: the
script catches the exit of a stop. FAILS_AT: the step at which the first run raises an error, which the script catches.
NAN_AT: the step at which the first attempt's loss is not finite.
"""

import contextlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from worker.files import FilesRun
from worker.process.startup import current_attempt

STEPS = int(os.environ.get("STEPS", "20"))
SECOND = int(os.environ.get("SECOND", "100000"))
STEP_S = float(os.environ.get("STEP_S", "0.01"))
FAILS_AT = int(os.environ.get("FAILS_AT", "-1"))
NAN_AT = int(os.environ.get("NAN_AT", "-1"))
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


def train(state: Weights, until: int, fails_at: int = -1) -> None:
    with FilesRun(state, total_steps=until) as run, contextlib.suppress(*CAUGHT):
        while not run.reached:
            time.sleep(STEP_S)
            state.array += 1 / (run.step + 1)
            is_nan = run.step + 1 == NAN_AT and current_attempt().number == 1
            run.step_done(epoch=0, batch=run.step, loss=math.nan if is_nan else float(state.array[0]))
            if run.step == fails_at:
                raise ValueError("the first run's error")


state = Weights()
with contextlib.suppress(ValueError):
    train(state, STEPS, FAILS_AT)
if SECOND:
    train(state, STEPS + SECOND)
