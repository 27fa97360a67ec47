"""State of Python's and NumPy's global generators, as JSON can hold it without loss."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np


def read() -> dict[str, Any]:
    """The state of both."""
    version, words, gauss = random.getstate()
    state: Any = np.random.get_state(legacy=False)
    return {
        "python": [version, list(words), gauss],
        "numpy": {**state, "state": {"key": state["state"]["key"].tolist(), "pos": int(state["state"]["pos"])}},
    }


def write(found: Mapping[str, Any]) -> None:
    """Gives both the state that `read` read."""
    version, words, gauss = found["python"]
    random.setstate((version, tuple(words), gauss))
    numpy = found["numpy"]
    key = np.array(numpy["state"]["key"], dtype=np.uint32)
    np.random.set_state({**numpy, "state": {"key": key, "pos": numpy["state"]["pos"]}})
