"""State of Python's and NumPy's generators, as JSON can hold it without loss."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

_ARRAY = "array"


def read() -> dict[str, Any]:
    """The state of both global ones."""
    return {"python": read_python(random), "numpy": as_json(np.random.get_state(legacy=False))}


def write(found: Mapping[str, Any]) -> None:
    """Gives both the state that `read` read."""
    write_python(random, found["python"])
    np.random.set_state(from_json(found["numpy"]))


def read_python(generator: Any) -> dict[str, Any]:
    """That of a random.Random, or of the module, which is one."""
    version, words, gauss = generator.getstate()
    return {"version": version, "words": list(words), "gauss": gauss}


def write_python(generator: Any, state: Mapping[str, Any]) -> None:
    """Gives it the state that `read_python` read."""
    generator.setstate((state["version"], tuple(state["words"]), state["gauss"]))


def as_json(value: Any) -> Any:
    """NumPy's generator states hold arrays of unsigned numbers, at any depth; each kind has others."""
    if isinstance(value, Mapping):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return {_ARRAY: str(value.dtype), "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any) -> Any:
    """What `as_json` was given."""
    if not isinstance(value, Mapping):
        return value
    if _ARRAY in value:
        return np.array(value["values"], dtype=value[_ARRAY])
    return {key: from_json(each) for key, each in value.items()}
