"""The parts of a tf.data dataset whose order is another one in each pass, and how many iterators were made of each.

Iterators are counted where TensorFlow makes them, so those that the script makes itself count too: `ds.take(1)`, an
evaluation on the training set.
"""

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from worker.internals import dataset_internals
from worker.internals.dataset_internals import ENDS_EARLY, changes_each_pass, inputs_of, repetitions_of, taken_of_input

_STARTS = "_stepkeeper_starts"  # attribute of a part: how many iterators were made of it
_FILLED = "_stepkeeper_filled"  # attribute of a cache: its content is complete
_MAX_DEPTH = 200
_MAX_MADE = 100
_OF_LIBRARIES = ("/tensorflow/python/", "/keras/src/", str(Path(__file__).parents[1]))
_counting = True
_made: list[tuple[Any, str]] = []  # weak references to iterators, each with the line of the script that made it


@dataclass(slots=True)
class RandomPart:
    """A part of a dataset whose order is another one in each pass.

    `once`: how often reading the dataset starts it at once; `total`: how often a whole pass does, None: unknown.
    `cache`: the outermost cache between it and the reader.
    """

    node: Any
    once: int
    total: int | None
    cache: Any = None

    @property
    def starts(self) -> int:
        """How many iterators were made of it in this process."""
        return int(vars(self.node).get(_STARTS, 0))

    @property
    def more(self) -> int:
        """How often a whole pass starts it after its beginning; 0 if that is unknown."""
        return 0 if self.total is None else self.total - self.once

    def add(self, starts: int) -> None:
        """Counts iterators."""
        vars(self.node)[_STARTS] = self.starts + starts

    def start_until(self, starts: int) -> None:
        """Makes iterators of it and drops them unread, until so many were made. They don't start what it reads from."""
        with _not_counting():
            for _ in range(self.starts, starts):
                iter(self.node)
        self.add(max(0, starts - self.starts))


def parts_of_dataset(dataset: Any) -> list[Any]:
    """The dataset and all datasets that it reads from, each once."""
    parts: dict[int, Any] = {}
    waiting = [dataset]
    for part in waiting:
        if id(part) not in parts and isinstance(part, tf.data.Dataset):
            parts[id(part)] = part
            waiting.extend(inputs_of(part))
    return list(parts.values())


def random_parts(dataset: Any) -> list[RandomPart]:
    """The parts of a dataset whose order is another one in each pass, always in the same order."""
    parts: dict[int, RandomPart] = {}
    _collect(dataset, _Reading(1, 1, None, is_early=False), parts, 0)
    return list(parts.values())


@dataclass(frozen=True, slots=True)
class _Reading:
    """How a whole pass reads a dataset. `once`, `total` and `cache`: as of RandomPart. `is_early`: whether it may end
    before the dataset does. `taken`: how many elements it takes, None: unknown."""

    once: int
    total: int | None
    cache: Any
    is_early: bool
    taken: int | None = None


def _collect(node: Any, reading: _Reading, parts: dict[int, RandomPart], depth: int) -> None:
    if depth > _MAX_DEPTH or not isinstance(node, tf.data.Dataset):
        return
    kind, inputs = type(node).__name__, inputs_of(node)
    if kind == "CacheDataset":
        filled = is_filled(node)
        cache = reading.cache if reading.cache is not None or (reading.is_early and not filled) else node
        once, total = (0, 0) if filled else (reading.once, None if reading.is_early else reading.total)
        reading = replace(reading, once=once, total=total, cache=cache)
    if changes_each_pass(node):
        part = parts.setdefault(id(node), RandomPart(node, 0, 0, reading.cache))
        part.once += reading.once
        part.total = None if reading.total is None or part.total is None else part.total + reading.total
    is_early = reading.is_early or kind in ENDS_EARLY or (kind == "_ZipDataset" and len(inputs) > 1)
    is_known = reading.taken is not None or not reading.is_early
    of_inputs = replace(reading, is_early=is_early, taken=taken_of_input(node, reading.taken) if is_known else None)
    if repetitions_of(node) != 1 and reading.total != 0:
        of_inputs = _repeated(node, inputs[0], reading)
    for number, source in enumerate(inputs):
        if kind == "_ConcatenateDataset" and number > 0:
            later = replace(of_inputs, once=0, total=None if of_inputs.is_early else of_inputs.total)
            _collect(source, later, parts, depth + 1)
        else:
            _collect(source, of_inputs, parts, depth + 1)


def _repeated(node: Any, source: Any, reading: _Reading) -> _Reading:
    """How the passes of a `repeat` read what it repeats."""
    count, size = repetitions_of(node), int(source.cardinality())
    if reading.taken is not None and size > 0:  # it begins a pass when it has to give an element of it
        passes, rest = divmod(reading.taken, size)
        is_early = rest > 0 and (count < 0 or passes < count)
        count = passes + (rest > 0) if count < 0 else min(count, passes + (rest > 0))
    else:
        is_early = reading.is_early
        count = -1 if is_early else count
    total = None if count < 0 or reading.total is None else reading.total * count
    return replace(reading, total=total, is_early=is_early, taken=None)


def is_filled(cache: Any) -> bool:
    """Whether the content of a cache is complete."""
    return bool(vars(cache).get(_FILLED))


def mark_filled(cache: Any) -> None:
    """The content of a cache is complete."""
    vars(cache)[_FILLED] = True


@contextmanager
def _not_counting() -> Iterator[None]:
    global _counting
    before, _counting = _counting, False
    try:
        yield
    finally:
        _counting = before


def open_iterators() -> list[tuple[Any, str]]:
    """The iterators of datasets that the script has made and still holds, each with the line that made it."""
    return [(iterator, place) for reference, place in _made if (iterator := reference()) is not None]


def _count_iterator(dataset: Any, iterator: Any) -> None:
    if not _counting or not tf.executing_eagerly():
        return
    for part in random_parts(dataset):
        part.add(part.once)
    if iterator is not None and (place := _place_in_script()) is not None:
        _made.append((weakref.ref(iterator), place))
        if len(_made) > _MAX_MADE:
            _made[:] = [entry for entry in _made if entry[0]() is not None]


def _place_in_script() -> str | None:
    """File and line that asked TensorFlow for an iterator; None if that was Keras or this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in (__file__, dataset_internals.__file__) and _OF_LIBRARIES[0] not in name:
            return None if any(library in name for library in _OF_LIBRARIES) else f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


dataset_internals.on_new_iterator(_count_iterator)
