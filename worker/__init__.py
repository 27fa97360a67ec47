"""What runs inside a training process: it restores, saves, and speaks with the daemon, if there is one.

`import worker` is cheap and does not import TensorFlow; under a daemon it opens the control pipes at once, so that
the daemon hears of this process, and of an exception in it, before TensorFlow is there.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

from worker import attempt

if TYPE_CHECKING:
    from worker.data import Examples
    from worker.devices import strategy
    from worker.loop import Training
    from worker.run import Run
    from worker.streams import replica_streams

__all__ = ["Examples", "Run", "Training", "replica_streams", "strategy"]

_HOMES = {"Examples": "data", "Run": "run", "Training": "loop", "replica_streams": "streams", "strategy": "devices"}

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up chatter; its errors still show
attempt.begin()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'worker' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        return getattr(importlib.import_module(f"worker.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ModuleNotFoundError(
            f"cannot use worker.{name}: there is no TensorFlow in the environment of {sys.executable}; "
            f"pip install 'stepkeeper[tensorflow]' there, or name the job's own interpreter with python=",
            name="tensorflow",
        ) from error
