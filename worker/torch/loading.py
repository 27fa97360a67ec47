"""What PyTorch loads of a checkpoint: tensors and plain values, NumPy's too (`weights_only`), and no other objects."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

_NUMPY_CLASSES: list[Any] = [
    np.dtype, np.ndarray, np.zeros(0).__reduce__()[0], np.float64(0).__reduce__()[0],
    *{type(np.dtype(kind)) for kind in np.typecodes["All"] if kind not in "OV"},
]  # fmt: skip
"""What NumPy's numbers, and arrays of them, are made of in a file: a learning rate is easily one of its float64."""


def load_state(path: Path) -> Any:
    """The state in the file, in host memory. Raises what torch.load does."""
    with _numpy_allowed():
        return torch.load(path, map_location="cpu", weights_only=True)


def unloadable_classes(path: Path) -> list[str]:
    """The classes for which `load` would refuse the file. None are known before PyTorch 2.6."""
    look = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    try:
        found = set(look(path)) if look is not None else set()
    except (OSError, RuntimeError, ValueError):  # it could not be read now, which says nothing of what it holds
        return []
    return sorted(found - {f"{each.__module__}.{each.__qualname__}" for each in _NUMPY_CLASSES})


@contextlib.contextmanager
def _numpy_allowed() -> Iterator[None]:
    """Loads take numbers and arrays of NumPy's; what the script allowed besides stays so. Not before PyTorch 2.5."""
    allow = getattr(torch.serialization, "safe_globals", None)
    if allow is None:
        yield
        return
    with allow([each for each in _NUMPY_CLASSES if each not in torch.serialization.get_safe_globals()]):
        yield
