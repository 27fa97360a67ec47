"""A training whose state is the list of everything it did, broken off at any moment and begun again."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from worker.files import FilesRun, Unfit


class Died(Exception):
    """Leaves the run as a death does: nothing is saved."""


class History:
    """The files of a program that remembers what it did."""

    versions: Mapping[str, str] = {}
    topology: Mapping[str, str | int | bool] = {}

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, folder: Path) -> None:
        (folder / "done.json").write_text(json.dumps(self.done))

    def read(self, folder: Path) -> None:
        self.done[:] = json.loads((folder / "done.json").read_text())

    def read_foreign(self, prefix: Path) -> int:
        raise Unfit("it is a TensorFlow checkpoint")


class Trainer:
    """What a script has: its run, its history, and moments at which it may die."""

    def __init__(self, run: FilesRun, history: History, dies_at: int | None) -> None:
        self.run = run
        self._history = history
        self._dies_at = dies_at
        self.moments = 0

    def passes(self) -> None:
        """A moment passes. Raises Died at the chosen one."""
        self.moments += 1
        if self.moments == self._dies_at:
            raise Died

    def does(self, what: Any) -> None:
        """Trains on something: changes the state."""
        self._history.done.append(what)

    def steps(self, what: Any) -> None:
        """Makes a step, with a moment before and behind it."""
        self.passes()
        self.does(what)
        self.run.step_done()
        self.passes()


Script = Callable[[Trainer], None]


def train(script: Script, folder: Path, dies_at: int | None = None, **settings: Any) -> tuple[list[Any], int, int]:
    """Runs a script in a folder: what was done in the end, the steps, and the moments of this process."""
    history = History()
    random.seed(3), np.random.seed(3)
    given = {"interval": "1 steps", "leave_out": [history, "done", "moments"], **settings}
    with FilesRun(history, directory=folder, **given) as run:
        trainer = Trainer(run, history, dies_at)
        script(trainer)
    return history.done, run.step, trainer.moments


def train_with_deaths(script: Script, folder: Path, moments: list[int], **settings: Any) -> tuple[list[Any], int]:
    """Runs a script to its end; the first processes die at these moments of theirs, if they come so far."""
    for moment in moments:
        try:
            return train(script, folder, moment, **settings)[:2]
        except Died:
            continue
    return train(script, folder, **settings)[:2]
