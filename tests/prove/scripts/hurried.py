"""Trains as examples/plain.py. Its second start shows no step before all are done, so nobody can kill it meanwhile, nor
do those up to start HURRIED; later ones take their time. FOLDER counts the starts.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from examples import plain

starts = Path(sys.argv[1])
number = len(list(starts.iterdir())) + 1
(starts / str(number)).touch()
last_hurried = int(os.environ["HURRIED"])
is_hurried = 2 <= number <= last_hurried


class Daemon(plain.Daemon):
    """Is told of steps at the end of training."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[dict[str, Any]] = []

    def send_message(self, type_: str, **fields: Any) -> None:
        if is_hurried and type_ in ("progress", "committed"):
            self._held.append({"type_": type_, **fields})
            return
        for message in self._held if type_ == "done" else ():
            super().send_message(**message)
        super().send_message(type_, **fields)
        if is_hurried and type_ == "done":
            os._exit(0)


class Network(plain.Network):
    """Trains slowly from the third start on."""

    def train(self, *batch: Any) -> float:
        if number > last_hurried:
            time.sleep(0.01)
        return super().train(*batch)


plain.Daemon, plain.Network = Daemon, Network  # type: ignore[misc]
sys.exit(plain.main())
