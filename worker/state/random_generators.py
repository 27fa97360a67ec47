"""State of Python's and NumPy's random generators, in a form that JSON holds without loss. Imports no TensorFlow."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

_ARRAY = "array"


def read() -> dict[str, Any]:
    """The state of both global generators."""
    return {"python": read_generator(random), "numpy": as_json(np.random.get_state(legacy=False))}


def write(states: Mapping[str, Any]) -> None:
    """Restores both global generators from what `read` returned."""
    write_generator(random, states["python"])
    np.random.set_state(from_json(states["numpy"]))


def read_generator(generator: Any) -> Any:
    """The state of a numpy.random.Generator, a numpy.random.RandomState, a random.Random, or the module `random`."""
    if isinstance(generator, np.random.Generator):
        return as_json(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return as_json(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return {"version": version, "words": list(words), "gauss": gauss}


def write_generator(generator: Any, state: Any) -> None:
    """Restores a generator from what `read_generator` returned for one of its kind."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = from_json(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(from_json(state))
    else:
        generator.setstate((state["version"], tuple(state["words"]), state["gauss"]))


def as_json(value: Any) -> Any:
    """NumPy's arrays and numbers, at any depth of dicts, as JSON with their type."""
    if isinstance(value, Mapping):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return {_ARRAY: str(value.dtype), "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any) -> Any:
    """The value that `as_json` was called with."""
    if not isinstance(value, Mapping):
        return value
    if _ARRAY in value:
        return np.array(value["values"], dtype=value[_ARRAY])
    return {key: from_json(each) for key, each in value.items()}
