"""Random generators that Python code draws from while it reads batches, which is ahead of the step that trains.

A checkpoint needs their state as it was before the first batch that is not trained on yet. So the states are copied
before each batch is read, and those of that batch are saved.
"""

import gc
import random
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from worker.checks import missing_variables, reachability
from worker.state.random_generators import read_generator, write_generator

_MOST_ITERATORS = 10_000  # that are looked at, to find those that a generator reads from
_GLOBAL: tuple[Any, ...] = (random, np.random.mtrand._rand)
_BOUND = random.getstate.__self__  # type: ignore[attr-defined]  # the generator behind the functions of `random`


class ReadAhead:
    """The states of the generators that reading `data` may draw from, by the number of the batch that is read next."""

    def __init__(self, data: Any) -> None:
        """`data`: an object or a function; its own generators and the global ones are watched."""
        roots = [("", data)]
        if isinstance(data, types.GeneratorType):
            roots = [root for generator in generators_in(data) for root in roots_of_generator(generator)]
        generators = missing_variables.reachable_generators(roots)
        self._generators = [
            *_GLOBAL,
            *(generator for generator in generators if generator is not _BOUND and generator is not _GLOBAL[1]),
        ]
        self._lock = threading.Lock()
        self._before: dict[int, list[Any]] = {}
        self.draws = False
        """Whether reading a batch has changed a state."""

    def reading(self, number: int, read: Any) -> Any:
        """What `read()` returns: batch `number`."""
        before = self.states()
        with self._lock:
            self._before[number] = before
        batch = read()
        if not self.draws and before != self.states():
            self.draws = True
        return batch

    def trained(self, number: int) -> None:
        """All batches below `number` were trained on."""
        with self._lock:
            for old in [earlier for earlier in self._before if earlier < number]:
                del self._before[old]

    def states(self) -> list[Any]:
        """The states now."""
        return [read_generator(generator) for generator in self._generators]

    def states_before(self, number: int) -> list[Any]:
        """The states before batch `number` was read, or before it will be."""
        with self._lock:
            return self._before.get(number) or self.states()

    def write(self, states: Iterable[Any]) -> None:
        """Restores states of as many generators. Raises ValueError for another number of them."""
        for generator, state in zip(self._generators, states, strict=True):
            write_generator(generator, state)

    def forget(self) -> None:
        """A new reading begins, with other numbers."""
        with self._lock:
            self._before.clear()

    def undisturbed(self) -> "_Undisturbed":
        """A context after which the generators are as before."""
        return _Undisturbed(self)


class _Undisturbed:
    def __init__(self, ahead: ReadAhead) -> None:
        self._ahead = ahead

    def __enter__(self) -> list[Any]:
        self._states = self._ahead.states()
        return self._states

    def __exit__(self, *error: object) -> None:
        self._ahead.write(self._states)


def generators_in(outer: "types.GeneratorType[Any, Any, Any]") -> "list[types.GeneratorType[Any, Any, Any]]":
    """A generator and those that it reads from, also through iterators of Python such as `zip` and `islice`."""
    generators: list[types.GeneratorType[Any, Any, Any]] = []
    waiting: list[Any] = [outer]
    visited: set[int] = set()
    for item in waiting:
        if id(item) in visited or len(waiting) > _MOST_ITERATORS:
            continue
        visited.add(id(item))
        if isinstance(item, types.GeneratorType):
            generators.append(item)
            waiting.extend([] if item.gi_frame is None else list(item.gi_frame.f_locals.values()))
            waiting.append(item.gi_yieldfrom)
        elif isinstance(item, Iterator) and type(item).__module__ in ("builtins", "itertools"):
            waiting.extend(gc.get_referents(item))
    return generators


def roots_of_generator(generator: "types.GeneratorType[Any, Any, Any]") -> list[reachability.Root]:
    """What the code of a generator can reach."""
    return [] if generator.gi_frame is None else reachability.roots_of_frame(generator.gi_frame)


class LookAhead:
    """Yields what an iterator yields, and knows with the last batch that it was the last."""

    def __init__(self, batches: Iterator[Any], first: int, ahead: ReadAhead) -> None:
        """`first`: the number of the first batch."""
        self.batches: int | None = None
        """The number of batches; None until the end was seen."""
        self._iterator = batches
        self._first = first
        self._ahead = ahead

    def __iter__(self) -> Iterator[Any]:
        nothing = object()
        number = 0

        def read() -> Any:
            return next(self._iterator, nothing)

        following = self._ahead.reading(self._first, read)
        while following is not nothing:
            batch, number = following, number + 1
            following = self._ahead.reading(self._first + number, read)
            if following is nothing:
                self.batches = number
            yield batch
