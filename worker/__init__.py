"""What runs inside a training process: it restores, saves, and speaks with the daemon, if there is one.

`import worker` is cheap and does not import TensorFlow; under a daemon it opens the control pipes at once, so that
the daemon hears of this process, and of an exception in it, before TensorFlow is there.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

from worker.process.startup import begin_attempt

if TYPE_CHECKING:
    from worker import export, files, keras, microbatch, tf1, torch
    from worker.data.batches import Examples
    from worker.devices.strategies import strategy
    from worker.loop import Training
    from worker.run.run import Run
    from worker.state.replica_streams import replica_streams

__all__ = [
    "Examples",
    "Run",
    "Training",
    "export",
    "files",
    "keras",
    "microbatch",
    "replica_streams",
    "strategy",
    "tf1",
    "torch",
]

_MODULES = ("export", "files", "keras", "microbatch", "tf1", "torch")
_TO_INSTALL = {"tensorflow": ("TensorFlow", "'stepkeeper[tensorflow]'"), "torch": ("PyTorch", "torch")}
_HOMES = {
    "Examples": "data.batches",
    "Run": "run.run",
    "Training": "loop",
    "replica_streams": "state.replica_streams",
    "strategy": "checkpoint.devices",
}

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's start-up chatter; its errors still show
_told = begin_attempt().launch
if _told.deterministic and _told.checkpoint_dir is not None:
    from worker.devices import conditions

    conditions.pin_onednn(_told.checkpoint_dir)


def __getattr__(name: str) -> object:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'worker' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        home = importlib.import_module(f"worker.{_HOMES.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name not in _TO_INSTALL:
            raise
        what, install = _TO_INSTALL[error.name]
        raise ModuleNotFoundError(
            f"cannot use worker.{name}: there is no {what} in the environment of {sys.executable}; "
            f"pip install {install} there, or name the job's own interpreter with python=",
            name=error.name,
        ) from error
    return home if name in _MODULES else getattr(home, name)
