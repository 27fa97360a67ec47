"""Training without TensorFlow that proofs run: adds up numbers, and shows the sum as its loss.

STEPS, STEP_S: how many steps, and how long each takes. FORGETS: a sum of the loop's own is not kept in the state, so a
run that is killed ends elsewhere. CHILD: starts a process that nobody is the parent of.
"""

import os
import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from worker.files import FilesRun

STEPS, STEP_S = int(os.environ.get("STEPS", "30")), float(os.environ.get("STEP_S", "0.01"))
FORGETS = "FORGETS" in os.environ


class Sum:
    """The state: one number."""

    versions: Mapping[str, str] = {}
    topology: Mapping[str, str | int | bool] = {}

    def __init__(self) -> None:
        self.value = 0.0

    def write(self, folder: Path) -> None:
        (folder / "sum").write_text(repr(self.value))

    def read(self, folder: Path) -> None:
        self.value = float((folder / "sum").read_text())

    def read_foreign(self, prefix: Path) -> int:
        raise NotImplementedError


def main() -> None:
    if "CHILD" in os.environ:
        subprocess.Popen(["/bin/sh", "-c", "setsid sleep 600 > /dev/null 2>&1 &"])
    random.seed(7)
    np.random.seed(7)
    state, forgotten = Sum(), 0.0
    with FilesRun(state, total_steps=STEPS) as run:
        while not run.reached:
            time.sleep(STEP_S)
            forgotten += 0.1
            state.value += 1 / (run.step + 1)
            run.step_done(epoch=0, batch=run.step, loss=state.value + (forgotten if FORGETS else 0.0))


if __name__ == "__main__":
    main()
