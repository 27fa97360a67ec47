"""State of Python's and NumPy's random generators, in a form that JSON holds without loss. Imports no TensorFlow."""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from supervisor.protocol.plurals import counted

GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
"""The kinds whose state can be read and written here."""
_ARRAY, _SPAWNED = "array", "spawned"


def check_own_generators(generators: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the script's generators. Raises TypeError for a kind whose state can't be saved."""
    checked = tuple(generators)
    for generator in checked:
        if not isinstance(generator, GENERATORS):
            raise TypeError(
                f"cannot save the state of a {type(generator).__name__}; generators= takes numpy.random.Generators, "
                f"numpy.random.RandomStates and random.Randoms"
            )
    return checked


def read(own: Sequence[Any] = ()) -> dict[str, Any]:
    """The state of both global generators and of the script's."""
    return {
        "python": read_generator(random),
        "numpy": as_json(np.random.get_state(legacy=False)),
        "own": [read_generator(generator) for generator in own],
    }


def write(states: Mapping[str, Any], own: Sequence[Any] = ()) -> None:
    """Restores the generators from what `read` returned. Raises ValueError for another number of the script's."""
    stored = states.get("own", ())
    if len(stored) != len(own):
        raise ValueError(
            f"the checkpoint contains the state of {counted(len(stored), 'generator')} of the script, but the run was "
            f"given {len(own)} (generators=)"
        )
    write_generator(random, states["python"])
    np.random.set_state(from_json(states["numpy"]))
    for generator, state in zip(own, stored, strict=True):
        write_generator(generator, state)


def read_generator(generator: Any) -> Any:
    """The state of a numpy.random.Generator, a numpy.random.RandomState, a random.Random, or the module `random`."""
    if isinstance(generator, np.random.Generator):
        state = as_json(generator.bit_generator.state)
        return {**state, _SPAWNED: spawned} if (spawned := _children_of(generator)) else state
    if isinstance(generator, np.random.RandomState):
        return as_json(generator.get_state(legacy=False))
    version, words, gauss = generator.getstate()
    return {"version": version, "words": list(words), "gauss": gauss}


def write_generator(generator: Any, state: Any) -> None:
    """Restores a generator from what `read_generator` returned for one of its kind."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = from_json({key: part for key, part in state.items() if key != _SPAWNED})
        if (spawned := state.get(_SPAWNED, 0)) != _children_of(generator):
            _set_children_of(generator, spawned)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(from_json(state))
    else:
        generator.setstate((state["version"], tuple(state["words"]), state["gauss"]))


def _children_of(generator: np.random.Generator) -> int:
    """How many generators its `spawn` has made, which is no part of its state, and what the next one is made of."""
    return int(getattr(getattr(generator.bit_generator, "seed_seq", None), "n_children_spawned", 0))


def _set_children_of(generator: np.random.Generator, count: int) -> None:
    bit_generator: Any = generator.bit_generator
    seeds = np.random.SeedSequence(**{**bit_generator.seed_seq.state, "n_children_spawned": count})
    try:
        bit_generator.__setstate__((bit_generator.state, seeds))
    except (TypeError, ValueError):  # NumPy 1, which can only go forward
        bit_generator.seed_seq.spawn(max(0, count - _children_of(generator)))


def as_json(value: Any) -> Any:
    """NumPy's arrays and numbers, at any depth of dicts, as JSON with their type."""
    if isinstance(value, Mapping):
        return {key: as_json(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray):
        return {_ARRAY: str(value.dtype), "values": value.tolist()}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any) -> Any:
    """The value that `as_json` was called with."""
    if not isinstance(value, Mapping):
        return value
    if _ARRAY in value:
        return np.array(value["values"], dtype=value[_ARRAY])
    return {key: from_json(entry) for key, entry in value.items()}
