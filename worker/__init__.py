"""The part of stepkeeper inside a training process: restores, saves, and reports to the daemon if there is one.

`import worker` is cheap and does not import TensorFlow. Under a daemon it opens the control pipes at once, so that the
daemon knows of this process, and of an exception in it, while TensorFlow is still being imported.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

from supervisor.protocol.installation import install_extra
from worker.process.keras_version import NEEDS_KERAS_3, require_keras_3
from worker.process.startup import begin_attempt

if TYPE_CHECKING:
    from worker import export, files, keras, microbatch, tf1, torch
    from worker.data.examples import Examples
    from worker.devices.strategies import strategy
    from worker.log_file import LogFile
    from worker.loop import Training
    from worker.run.run import Run
    from worker.state.extra_state import replica_streams

__all__ = [
    "Examples",
    "LogFile",
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

# Imported at their first use, because most of them import TensorFlow or PyTorch:
_DEFINED_IN = {
    "Examples": "worker.data.examples",
    "LogFile": "worker.log_file",
    "Run": "worker.run.run",
    "Training": "worker.loop",
    "replica_streams": "worker.state.extra_state",
    "strategy": "worker.devices.strategies",
}
_MODULES = ("export", "files", "keras", "microbatch", "tf1", "torch")
_TO_INSTALL = {"tensorflow": ("TensorFlow", "tensorflow"), "torch": ("PyTorch", "torch")}

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's start-up messages; its errors still show
_launch = begin_attempt().launch
if _launch.deterministic and _launch.checkpoint_dir is not None:
    from worker.devices import conditions

    conditions.pin_onednn(_launch.checkpoint_dir)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in globals() if name.startswith("__"))]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'worker' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name in NEEDS_KERAS_3:
        require_keras_3(name)
    try:
        module = importlib.import_module(_DEFINED_IN.get(name, f"worker.{name}"))
    except ModuleNotFoundError as error:
        if error.name not in _TO_INSTALL:
            raise
        library, package = _TO_INSTALL[error.name]
        command = install_extra(package) if package == "tensorflow" else f"{sys.executable} -m pip install {package}"
        raise ModuleNotFoundError(
            f"cannot use worker.{name}: {library} is not installed in the environment of {sys.executable}; install "
            f"it there: {command}; or set python= to the interpreter of the job's own environment",
            name=error.name,
        ) from error
    return module if name in _MODULES else getattr(module, name)
