"""Counts the passes over a tf.data dataset, so that the order of a shuffle in a later pass comes back after a restart.

`Dataset.shuffle` has another order in each pass. With a seed, the order of a pass is a function of how many iterators
the shuffle was asked for before, in this process; making an iterator and dropping it unread counts too, and costs a
millisecond. So these counts are state. They are kept for each random part of a dataset (a shuffle, a
`Dataset.random` that rerandomizes), because one pass may start a part several times (`shuffle(n).repeat(3)`), or not at
all (behind a filled `cache`).

`dataset_parts` finds the parts and counts.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from worker.internals.dataset_internals import original_dataset, seeds_of
from worker.internals.tensorflow_internals import seed_sequence
from worker.state.dataset_parts import RandomPart, is_filled, mark_filled, random_parts
from worker.state.random_generators import read_generator, write_generator

_MOST_SEEDS = 1000  # that the head of an epoch takes
_LARGEST_SEED = 2**31 - 1  # as in TensorFlow's Context.internal_operation_seed


class PassLog:
    """The passes over the data of one run: what a checkpoint has to know of them, and what brings one back."""

    def __init__(
        self, saved: Mapping[str, Any] | None = None, digest: Callable[[], bytes | None] = lambda: None
    ) -> None:
        """`saved`: what `to_json` returned when the restored checkpoint was written. `digest`: of the generators of
        Python and NumPy that it holds."""
        self._saved = dict(saved or {})
        self.data: Any = None
        """What the newest pass reads: a dataset, or a distributed one."""
        self.is_made_anew = False
        """Whether the script makes a dataset for each epoch, which has been in no pass before."""
        self.draws = False
        """Whether the script's function drew from Python's or NumPy's generators when it made a dataset."""
        self.described: Mapping[str, Any] | None = None
        """What this run reads, in words."""
        self.described_skipped: Mapping[str, Any] | None = None
        """The data of the epoch that was at its end when training went on, which were not read again, in words."""
        self.described_before: Mapping[str, Any] = self._saved.pop("data", {})
        """What it read when the restored checkpoint was written."""
        self._seeds = self._saved.pop("seeds", None)
        self._digest = digest
        self._epoch: int | None = None
        self._parts: list[RandomPart] = []
        self._opened: list[int] = []
        self._filled: dict[str, int] = {}
        self._catch_up: Mapping[str, list[int]] = {}
        self._ended = False
        self._left: dict[str, RandomPart] = {}  # of data that earlier epochs read, and later ones may read again
        self._others: dict[str, list[int]] = self._saved.pop("others", {})  # as `parts`, of data not read again yet
        self._makes = False  # whether a function of the script makes the data of each epoch
        self._is_held = False  # whether the script has had the data of the newest pass from before its loop
        self._rng: Any = None
        self._late_rng: Any = None

    def put_back_seeds(self) -> None:
        """Goes on in TensorFlow's sequence of seeds where a training was that had read no dataset through its run: the
        datasets that its steps make have the orders that they would have had."""
        if self._seeds is not None and seed_sequence() is not None:
            write_generator(seed_sequence(), self._seeds)

    @property
    def last_described(self) -> Mapping[str, Any]:
        """What was read last, in this process or before it."""
        return self.described_before if self.described is None else self.described

    def make_dataset(self, of_epoch: Callable[[int], Any], epoch: int) -> Any:
        """The dataset that the script's function makes for an epoch.

        A shuffle without a seed of its own takes one from TensorFlow's sequence of seeds, which is put back to where it
        was when this epoch began.
        """
        self._makes = True
        rng = self._saved.get("rng")
        if rng is not None and rng["opened"] is not None and seed_sequence() is not None:
            resumes = self._saved["epoch"] == epoch
            write_generator(seed_sequence(), rng["opened" if resumes else "now"])
            self._late_rng = rng["now"] if resumes else None
        self._rng = _read_seed_sequence()
        before = self._digest()
        dataset = of_epoch(epoch)
        self.draws = self.draws or before != self._digest()
        return dataset

    def begin(self, data: Any, epoch: int) -> None:
        """Call it before a pass over `data` begins. After a restore, it begins as it did before."""
        if self.is_of_epoch_before(epoch):  # the newest checkpoint is of its end
            if self.is_made_anew:
                self._saved = {}
            else:
                self.skip(data)
        self._begin(data, epoch)

    def is_of_epoch_before(self, epoch: int) -> bool:
        """Whether the restored checkpoint is of another epoch than the one that begins now."""
        return bool(self._saved.get("epoch", epoch) != epoch)

    def skip(self, data: Any) -> None:
        """Call it after a restore, if the pass over `data` was at its end: continues from there without reading it."""
        saved = self._saved.get("parts")
        if (
            self._epoch is not None
            or not saved
            or saved.keys().isdisjoint(_keyed(random_parts(original_dataset(data))))
        ):
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
        if self._is_held:
            self._left |= _keyed(self._parts)
        self._is_held = not (self._makes or self.is_made_anew)
        self.data = data
        self._parts = random_parts(original_dataset(data))
        keyed = _keyed(self._parts)
        for key in keyed:
            self._left.pop(key, None)
        saved, self._saved = self._saved, {}
        if saved.get("rng") is not None and not self._makes and seed_sequence() is not None:
            self._late_rng = saved["rng"]["now"]  # for the datasets that steps make; the script has made this one
        parts = saved.get("parts") or {}
        if parts and keyed.keys().isdisjoint(parts):
            self._others |= {key: [counts[1], *counts[1:]] for key, counts in parts.items()}
        if others := {key: self._others.pop(key) for key in keyed if key in self._others}:
            self.described_before = {}  # it is not compared with the newest of that training
        if parts or others:
            self._restore(others or parts)
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
            mark_filled(cache)

    def _unfilled_caches(self) -> list[Any]:
        caches = {id(part.cache): part.cache for part in self._parts if part.cache is not None}
        return [cache for cache in caches.values() if not is_filled(cache)]

    def _record_filled(self, cache: Any) -> None:
        for number, part in enumerate(self._parts):
            if part.cache is cache:
                self._filled[_key(number, part)] = self._opened[number]

    def to_json(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        data = dict(self.last_described)
        if self._epoch is None:
            if not (self._saved or self._others):
                return {"seeds": _read_seed_sequence(), "data": data}
            return {**self._saved, **({"others": self._others} if self._others else {}), "data": data}
        parts = {}
        for number, part in enumerate(self._parts):
            key = _key(number, part)
            parts[key] = [self._opened[number], part.starts, *([self._filled[key]] if key in self._filled else [])]
        now = _read_seed_sequence()
        rng = None if now is None else {"opened": self._rng, "now": now}
        others = dict(self._others)
        for key, part in self._left.items():
            others[key] = [part.starts, part.starts, *([self._filled[key]] if key in self._filled else [])]
        known = {"others": others} if others else {}
        return {"epoch": self._epoch, "ended": self._ended, "parts": parts, **known, "rng": rng, "data": data}

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
    return [RandomPart(part.node, 0, 0, part.cache) if is_filled(part.cache or part.node) else part for part in parts]


def _fill(cache: Any) -> None:
    """Fills a cache in memory: reads its whole content once."""
    for _ in cache:
        pass
    mark_filled(cache)


def _keyed(parts: list[RandomPart]) -> dict[str, RandomPart]:
    return {_key(number, part): part for number, part in enumerate(parts)}


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
