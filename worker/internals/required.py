"""Imports modules that are not public, and refuses a release of their library that has other names."""

import importlib
import sys
from types import ModuleType
from typing import Any

_LIBRARIES = {"tensorflow": "TensorFlow", "keras": "Keras"}


def require(module: str, *names: str) -> ModuleType:
    """The module, which has all these names; a name may be one of a class, as `Dataset._inputs`. Raises ImportError."""
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _parents(module):
            raise
        raise _refusal(module, f"no module {module}") from error
    for name in names:
        part: Any = loaded
        for step in name.split("."):
            if not hasattr(part, step):
                raise _refusal(module, f"no {name} in {module}")
            part = getattr(part, step)
    return loaded


def _parents(module: str) -> list[str]:
    """The module and the packages that it is in, without the library itself: whether that is there is no question."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(2, len(parts) + 1)]


def _refusal(module: str, what: str) -> ImportError:
    library = module.partition(".")[0]
    name, version = _LIBRARIES[library], getattr(sys.modules[library], "__version__", "of an unknown version")
    return ImportError(
        f"cannot use {name} {version}: it has {what}, which is not public and which stepkeeper needs; install a "
        f"newer stepkeeper, or an earlier {name} if this one is newer than stepkeeper"
    )
