"""Counts the passes over a tf.data dataset, so that the order of a shuffle in a later pass comes back after a restart.

`Dataset.shuffle` has another order in each pass. With a seed, the order of a pass is a function of how many iterators
the shuffle was asked for before, in this process; making an iterator and dropping it unread counts too, and costs a
millisecond. So these counts are state. They are kept for each random part of a dataset (a shuffle, a
`Dataset.random` that rerandomizes), because one pass may start a part several times (`shuffle(n).repeat(3)`), or not at
all (behind a filled `cache`).

Iterators are counted where TensorFlow makes them, so those that the script makes itself count too: `ds.take(1)`, an
evaluation on the training set.
"""

import random
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import tensorflow as tf

from worker.internals import tensorflow_internals
from worker.internals.tensorflow_internals import (
    ENDS_EARLY,
    changes_each_pass,
    inputs_of,
    original_dataset,
    repetitions_of,
    seed_sequence,
    seeds_of,
)
from worker.state.random_generators import read_generator, write_generator

_STARTS = "_stepkeeper_starts"  # attribute of a part: how many iterators were made of it
_FILLED = "_stepkeeper_filled"  # attribute of a cache: its content is complete
_MAX_DEPTH = 200
_MAX_MADE = 100
_MOST_SEEDS = 1000  # that the head of an epoch takes
_LARGEST_SEED = 2**31 - 1  # as in TensorFlow's Context.internal_operation_seed
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
    found: dict[int, Any] = {}
    waiting = [dataset]
    for each in waiting:
        if id(each) not in found and isinstance(each, tf.data.Dataset):
            found[id(each)] = each
            waiting.extend(inputs_of(each))
    return list(found.values())


def random_parts(dataset: Any) -> list[RandomPart]:
    """The parts of a dataset whose order is another one in each pass, always in the same order."""
    found: dict[int, RandomPart] = {}
    _collect(dataset, 1, 1, None, False, found, 0)
    return list(found.values())


def _collect(
    node: Any, once: int, total: int | None, cache: Any, early: bool, found: dict[int, RandomPart], depth: int
) -> None:
    """`early`: whether the dataset may end before `node` does."""
    if depth > _MAX_DEPTH or not isinstance(node, tf.data.Dataset):
        return
    kind, inputs = type(node).__name__, inputs_of(node)
    if kind == "CacheDataset":
        filled = bool(vars(node).get(_FILLED))
        cache = cache if cache is not None or (early and not filled) else node
        once, total = (0, 0) if filled else (once, None if early else total)
    if changes_each_pass(node):
        part = found.setdefault(id(node), RandomPart(node, 0, 0, cache))
        part.once += once
        part.total = None if total is None or part.total is None else part.total + total
    if (count := repetitions_of(node)) != 1 and total != 0:
        total = None if early or count < 0 or total is None else total * count
    early = early or kind in ENDS_EARLY or (kind == "_ZipDataset" and len(inputs) > 1)
    for number, each in enumerate(inputs):
        if kind == "_ConcatenateDataset" and number > 0:
            _collect(each, 0, None if early else total, cache, early, found, depth + 1)
        else:
            _collect(each, once, total, cache, early, found, depth + 1)


class PassLog:
    """The passes over the data of one run: what a checkpoint has to know of them, and what brings one back."""

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """`saved`: what `to_json` returned when the restored checkpoint was written."""
        self._saved = dict(saved or {})
        self.data: Any = None
        """What the newest pass reads: a dataset, or a distributed one."""
        self.described: Mapping[str, Any] | None = None
        """What this run reads, in words."""
        self.described_before: Mapping[str, Any] = self._saved.pop("data", {})
        """What it read when the restored checkpoint was written."""
        self._epoch: int | None = None
        self._parts: list[RandomPart] = []
        self._opened: list[int] = []
        self._filled: dict[str, int] = {}
        self._catch_up: Mapping[str, list[int]] = {}
        self._ended = False
        self._rng: Any = None
        self._late_rng: Any = None

    @property
    def last_described(self) -> Mapping[str, Any]:
        """What was read last, in this process or before it."""
        return self.described_before if self.described is None else self.described

    def make_dataset(self, of_epoch: Callable[[int], Any], epoch: int) -> Any:
        """The dataset that the script's function makes for an epoch.

        A shuffle without a seed of its own takes one from TensorFlow's sequence of seeds, which is put back to where it
        was when this epoch began.
        """
        rng = self._saved.get("rng")
        if rng is not None and seed_sequence() is not None:
            resumes = self._saved["epoch"] == epoch
            write_generator(seed_sequence(), rng["opened" if resumes else "now"])
            self._late_rng = rng["now"] if resumes else None
        self._rng = _read_seed_sequence()
        return of_epoch(epoch)

    def begin(self, data: Any, epoch: int) -> None:
        """Call it before a pass over `data` begins. After a restore, it begins as it did before."""
        if self._saved.get("epoch", epoch) != epoch:
            self.skip(data)  # the newest checkpoint is of the end of the epoch before
        self._begin(data, epoch)

    def skip(self, data: Any) -> None:
        """Call it after a restore, if the pass over `data` was at its end: continues from there without reading it."""
        if self._epoch is not None or not self._saved.get("parts"):
            return
        was_ended = self._saved["ended"]
        self._begin(data, self._saved["epoch"])
        if not was_ended:
            for cache in self._unfilled_caches():
                self._record_filled(cache)
                _fill(cache)
        self.opened()
        if not was_ended:
            for part in self._parts:
                part.start_until(part.starts + part.more)
        self._ended = True

    def _begin(self, data: Any, epoch: int) -> None:
        self.data = data
        self._parts = random_parts(original_dataset(data))
        saved, self._saved = self._saved, {}
        if saved.get("parts"):
            self._restore(saved["parts"])
        self._epoch, self._ended = epoch, False
        self._opened = [part.starts for part in self._parts]

    def opened(self) -> None:
        """Call it once the pass has its iterator: counts the iterators that were made after that, before."""
        for number, part in enumerate(self._parts):
            part.start_until(self._catch_up.get(_key(number, part), (0, 0))[1])
        self._catch_up = {}
        if self._late_rng is not None:
            write_generator(seed_sequence(), self._late_rng)
            self._late_rng = None

    def end(self) -> None:
        """Call it when the data of the pass have ended."""
        if self._ended or self._epoch is None:
            return
        self._ended = True
        for part in self._parts:
            part.add(part.more)
        for cache in self._unfilled_caches():
            self._record_filled(cache)
            vars(cache)[_FILLED] = True

    def _unfilled_caches(self) -> list[Any]:
        caches = {id(part.cache): part.cache for part in self._parts if part.cache is not None}
        return [each for each in caches.values() if not vars(each).get(_FILLED)]

    def _record_filled(self, cache: Any) -> None:
        for number, part in enumerate(self._parts):
            if part.cache is cache:
                self._filled[_key(number, part)] = self._opened[number]

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        data = dict(self.last_described)
        if self._epoch is None:
            return {**self._saved, "data": data}
        parts = {}
        for number, part in enumerate(self._parts):
            key = _key(number, part)
            parts[key] = [self._opened[number], part.starts, *([self._filled[key]] if key in self._filled else [])]
        rng = None if self._rng is None else {"opened": self._rng, "now": _read_seed_sequence()}
        return {"epoch": self._epoch, "ended": self._ended, "parts": parts, "rng": rng, "data": data}

    def _restore(self, counts: Mapping[str, list[int]]) -> None:
        for number, part in enumerate(self._parts):
            key = _key(number, part)
            if len(counts.get(key, ())) > 2:
                self._filled[key] = counts[key][2]
                part.start_until(counts[key][2])
        for cache in self._unfilled_caches():
            if any(
                part.cache is cache and _key(number, part) in self._filled for number, part in enumerate(self._parts)
            ):
                _fill(cache)
        self._parts = random_parts_again(self._parts)
        for number, part in enumerate(self._parts):
            part.start_until(counts.get(_key(number, part), (0,))[0])
        self._catch_up = counts


def random_parts_again(parts: list[RandomPart]) -> list[RandomPart]:
    """The same parts, where caches may have been filled since."""
    return [
        RandomPart(part.node, 0, 0, part.cache) if vars(part.cache or part.node).get(_FILLED) else part
        for part in parts
    ]


def _fill(cache: Any) -> None:
    """Fills a cache in memory: reads its whole content once."""
    for _ in cache:
        pass
    vars(cache)[_FILLED] = True


def _key(number: int, part: RandomPart) -> str:
    return ":".join(map(str, (number, type(part.node).__name__, *(seeds_of(part.node) or ()))))


def _read_seed_sequence() -> Any:
    sequence = seed_sequence()
    return None if sequence is None else read_generator(sequence)


def seed_state() -> Any:
    """Where TensorFlow's sequence of seeds is, for `seeds_taken_since`; None without a global seed."""
    sequence = seed_sequence()
    return None if sequence is None else sequence.getstate()


def seeds_taken_since(before: Any) -> frozenset[int]:
    """The seeds that operations and datasets have taken from the sequence since it was at `before`. None if they are
    unusually many, or if there is another global seed since then."""
    taken: set[int] = set()
    if before is None or (now := seed_state()) is None:
        return frozenset()
    sequence = random.Random()  # noqa: S311 - TensorFlow's sequence is one
    sequence.setstate(before)
    for _ in range(_MOST_SEEDS):
        if sequence.getstate() == now:
            return frozenset(taken)
        taken.add(sequence.randint(0, _LARGEST_SEED))
    return frozenset()


# --- counting ---------------------------------------------------------------------------------------------------------


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
            _made[:] = [each for each in _made if each[0]() is not None]


def _place_in_script() -> str | None:
    """File and line that asked TensorFlow for an iterator; None if that was Keras or this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in (__file__, tensorflow_internals.__file__) and _OF_LIBRARIES[0] not in name:
            return None if any(each in name for each in _OF_LIBRARIES) else f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


tensorflow_internals.on_new_iterator(_count_iterator)
