"""Batches that Python code makes: `keras.utils.PyDataset`, and generators.

A PyDataset is asked for the batches that are left. A generator is read on from its beginning.
"""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import xxhash

from worker.checks.findings import Finding
from worker.checks.loop_lines import calls, name_of_call
from worker.checks.loop_source import function_of, generator_expression_of
from worker.checks.reachability import parts_of_script, walk
from worker.internals import keras_data
from worker.keras.fit_data import EpochBatches, FitData
from worker.keras.kept_attributes import KeptAttributes
from worker.keras.read_ahead import LookAhead, ReadAhead, generators_in, roots_of_generator
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position

_HASHED_ENTRIES = 4096  # at the beginning and at the end of each array of a batch
_UNSEEDED = ("default_rng", "RandomState", "Random")


class PyDatasetData(FitData):
    """A `keras.utils.PyDataset`. Its batches come in another order each epoch, a function of (seed, epoch), as Keras
    shuffles them too.

    What `on_epoch_begin` and `on_epoch_end` change in its attributes is saved.
    """

    counts_examples = False

    def __init__(self, dataset: Any, shuffle: bool, seed: int, class_weight: Any = None) -> None:
        self._dataset = dataset
        self._shuffle = shuffle and dataset.num_batches is not None
        self.seed = seed
        self._class_weight = class_weight
        self._parallel = dataset.workers > 1 or (dataset.workers > 0 and dataset.use_multiprocessing)
        self._ahead = ReadAhead(dataset)
        self._problems: list[Finding] = []
        self._opened_at = 0  # the number of the first batch of the last opening
        self._in_epoch = False
        self._restored: list[Any] | None = None
        self._kept = KeptAttributes(dataset)
        self._signature = self._read_signature()

    def count_batches(self, position: Position) -> int | None:
        count = self._dataset.num_batches
        return None if count is None else int(count)

    def element_spec(self) -> Any:
        return self._signature

    def begin_training(self, resumed: bool) -> None:
        if not resumed:
            self._dataset.on_epoch_end()  # as Keras calls it before the first epoch, to shuffle
            self._kept.keep()

    def begin_epoch(self) -> None:
        self._dataset.on_epoch_begin()
        self._in_epoch = True
        self._kept.keep()

    def end_epoch(self) -> None:
        if self._in_epoch:
            self._in_epoch = False
            self._dataset.on_epoch_end()
            self._kept.keep()

    def open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        self._in_epoch = True
        self._ahead.forget()
        if self._restored is not None and position.batch > 0:
            self._ahead.write(self._restored)
        self._restored = None
        count = self.count_batches(position)
        left = None if count is None else max(0, count - position.batch)
        passes.described = {"number of batches": -1 if count is None else count}
        rest = _RestOfPyDataset(self._dataset, self._order(position.epoch, count), position.batch, left, self._ahead)
        return EpochBatches(keras_data.read_py_dataset(rest, self._class_weight, self._signature), model, left)

    def position_after(self, start: Position, batches: int) -> Position:
        self._ahead.trained(start.batch + batches)
        return super().position_after(start, batches)

    def roots(self) -> list[Any]:
        return []

    def find_problems(self) -> list[Finding]:
        return self._problems

    def fingerprint(self) -> Any:
        with self._ahead.undisturbed():
            return _hash_batch(self._dataset[0])

    def save(self, position: Position) -> Any:
        saved, arrays = self._kept.kept
        known = self._ahead.draws and not self._parallel and position.batch > 0
        states = self._ahead.states_before(position.batch) if known else None
        return {"seed": self.seed, "attributes": saved, "generators": states}, arrays

    def restore(self, saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.seed = saved["seed"]
        self._restored = saved["generators"]
        self._ahead.draws = self._ahead.draws or self._restored is not None
        self._kept.restore(saved["attributes"], arrays)

    def _order(self, epoch: int, count: int | None) -> Any:
        """The number of the n-th batch of an epoch; None: n itself."""
        if not self._shuffle or count is None:
            return None
        return np.random.Generator(np.random.PCG64([self.seed, epoch])).permutation(count)

    def _read_signature(self) -> Any:
        """What Keras' adapter finds out from the first two batches. Names what reading them changes."""
        name = type(self._dataset).__name__
        before = self._kept.digests()
        with self._ahead.undisturbed() as states:
            count = self._dataset.num_batches
            if count == 0:
                raise ValueError(f"cannot train: the {name} has no batches")
            view = _RestOfPyDataset(self._dataset, None, 0, None if count is None else int(count), None)
            signature = keras_data.py_dataset_signature(view, self._class_weight)
            self._ahead.draws = states != self._ahead.states()
        if self._ahead.draws and self._parallel:
            self._problems.append(Finding(
                f"random numbers of {name}.__getitem__, which several workers draw",
                f"use workers=1, or seed a generator from the index of the batch in {name}.__getitem__",
            ))  # fmt: skip
        if _draws_unseeded(inspect.unwrap(type(self._dataset).__getitem__)):
            self._problems.append(Finding(f"a generator without a seed in {name}.__getitem__", "give it a seed"))
        changed = [key for key, value in self._kept.digests().items() if before.get(key) != value]
        changed = [key for key in changed if not isinstance(vars(self._dataset)[key], _GENERATORS)]
        if changed:
            self._problems.append(Finding(
                f"{', '.join(f'{name}.{attribute}' for attribute in changed)}, changed by {name}.__getitem__ ahead of "
                f"the step",
                f"change it in {name}.on_epoch_end instead",
            ))  # fmt: skip
        return signature


_GENERATORS = (np.random.Generator, np.random.RandomState)


class _RestOfPyDataset(tf.keras.utils.PyDataset):  # type: ignore[misc]
    """The batches of a PyDataset from one on, in another order."""

    def __init__(self, whole: Any, order: Any, first: int, left: int | None, ahead: ReadAhead | None) -> None:
        super().__init__(whole.workers, whole.use_multiprocessing, whole.max_queue_size)
        parallel = whole.workers > 1 or (whole.workers > 0 and whole.use_multiprocessing)
        self._whole = whole
        self._order = order
        self._first = first
        self._left = left
        self._ahead = None if parallel else ahead

    @property
    def num_batches(self) -> int | None:
        """How many are left; None: no end."""
        return self._left

    def __getitem__(self, index: int) -> Any:
        number = self._first + index
        place = number if self._order is None else int(self._order[number])
        if self._ahead is None:
            return _copied(self._whole[place])
        return _copied(self._ahead.reading(number, lambda: self._whole[place]))


class GeneratorData(FitData):
    """A Python generator: a function that makes one for each epoch, or one that is there already.

    The epoch is read on from its beginning: the generator is made again, with the states that random generators had
    then, and its first batches are dropped.
    """

    counts_examples = False

    def __init__(self, data: Any, class_weights: Callable[[Any], Any] | None = None) -> None:
        self._data = data
        self.is_one_pass = isinstance(data, types.GeneratorType)
        self.each_epoch_anew = not self.is_one_pass and _takes_epoch(data)
        self._class_weights = class_weights
        self._ahead = ReadAhead(data)
        self._problems: list[Finding] = []
        self._signature: Any = None
        self._starts: list[Any] | None = None  # the states when the current pass began
        self._first: str | None = None  # a hash of the first batch of the current pass
        self._read: dict[int, str] = {}  # a hash of the batches before each that is not trained on yet
        self._restored: Mapping[str, Any] | None = None
        self._name = getattr(data, "__qualname__", type(data).__name__).replace("<locals>.", "")
        self._peeked: list[str] = []  # hashes of the first batches
        self._peek()

    def count_batches(self, position: Position) -> int | None:
        return None

    def element_spec(self) -> Any:
        return self._signature

    def find_problems(self) -> list[Finding]:
        return self._problems

    def note_trained(self, objects: Iterable[Any]) -> None:
        if not self.is_one_pass:
            return
        changed = {id(item): item for item in objects}
        roots = [root for generator in generators_in(self._data) for root in roots_of_generator(generator)]
        for name, item in walk(roots, parts_of_script):
            if id(item) in changed:
                self._problems.append(Finding(
                    f"what the generator {self._data.__qualname__} reads of {name}, which training changes",
                    "after a restart it is read from its beginning, with what training had changed by then: give fit a "
                    "function that makes the generator of each epoch, without calling it, or a keras.utils.PyDataset",
                ))  # fmt: skip

    def open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        self._ahead.forget()
        restored, self._restored = self._restored, None
        if restored is not None and position.batch > 0:
            if restored["draws"]:
                self._ahead.draws = True
                self._ahead.write(restored["starts"])
            self._starts = restored["starts"]
            batches = self._iterate(position.epoch)
            self._skip(batches, position, restored.get("read"))
        else:
            self._read = {}
            self._starts = self._ahead.states()
            batches = self._iterate(position.epoch)
        ending = LookAhead(self._hashing(batches, position), position.batch, self._ahead)
        dataset = keras_data.read_generator(map(_copied, ending), self._signature)
        if self._class_weights is not None:
            dataset = dataset.map(self._class_weights)
        return EpochBatches(dataset, model, None, ending)

    def position_after(self, start: Position, batches: int) -> Position:
        number = start.batch + batches
        self._ahead.trained(number)
        for read in [read for read in list(self._read) if read < number]:
            del self._read[read]
        return super().position_after(start, batches)

    def fingerprint(self) -> Any:
        return self._peeked

    def save(self, position: Position) -> Any:
        read = self._read.get(position.batch)
        return {"draws": self._ahead.draws, "starts": self._starts, "first": self._first, "read": read}, {}

    def restore(self, saved: Mapping[str, Any], arrays: Any) -> None:
        self._restored = saved
        self._first = saved["first"]

    def _iterate(self, epoch: int) -> Iterator[Any]:
        if self.is_one_pass:
            return iter(self._data)
        return iter(self._data(*([epoch] if _takes_epoch(self._data) else [])))

    def _peek(self) -> None:
        """Finds out from the first two batches what they look like, and whether they can be repeated."""
        if self.is_one_pass:
            name = self._data.__qualname__
            if self._data.gi_frame is None:
                raise ValueError(f"cannot train: the generator {name} has ended; give a function that makes it")
            if any(map(_draws_unseeded, generators_in(self._data))):
                self._problems.append(Finding(f"a generator without a seed in {name}", "give it a seed"))
            return
        with self._ahead.undisturbed() as states:
            first = self._first_batches()
            self._ahead.draws = states != self._ahead.states()
        with self._ahead.undisturbed():
            again = self._first_batches()
        self._peeked = [_hash_batch(batch) for batch in first]
        if self._peeked != [_hash_batch(batch) for batch in again]:
            self._problems.append(Finding(
                f"the batches of {self._name}, which yields others when it is called again",
                "make everything that it reads from inside the function, and give its random generators a seed",
            ))  # fmt: skip
        if not first:
            raise ValueError(f"cannot train: {self._name} yields no batches")
        self._signature = keras_data.spec_of_batches(first)

    def _first_batches(self) -> list[Any]:
        batches = self._iterate(0)
        return [batch for _, batch in zip(range(2), batches, strict=False)]

    def _skip(self, batches: Iterator[Any], position: Position, read_before: str | None) -> None:
        """Reads the batches before a position again. `read_before`: a hash of them; None: it is not known."""
        hashed = ""
        for number in range(position.batch):
            batch = next(batches, None)
            if number == 0 and _hash_batch(batch) != self._first:
                raise ValueError(self._other_batches("its first batch is another one"))
            hashed = _hash_on(hashed, batch)
        if read_before is not None and hashed != read_before:
            raise ValueError(self._other_batches(f"not all of its first {position.batch} batches are the same"))
        self._read = {position.batch: hashed}

    def _other_batches(self, difference: str) -> str:
        return (
            f"cannot resume in the middle of {self._name}: {difference} than when training began, so it is unknown "
            f"which batches are left; make everything that it reads from inside the function, give its random "
            f"generators a seed, or use a keras.utils.PyDataset"
        )

    def _hashing(self, batches: Iterator[Any], position: Position) -> Iterator[Any]:
        for number, batch in enumerate(batches, position.batch):
            if number == 0:
                self._first = _hash_batch(batch)
            self._read[number + 1] = _hash_on(self._read.get(number, ""), batch)
            yield batch


def _takes_epoch(function: Any) -> bool:
    """Whether a function can be called with the epoch."""
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    return True


def _draws_unseeded(source: Any) -> bool:
    """Whether the source of a function or of a generator makes a random generator without a seed."""
    code = getattr(source, "__code__", getattr(source, "gi_code", None))
    node = None if code is None else function_of(code) or generator_expression_of(code)
    unseeded = [call for call in calls(node) if not call.args and not call.keywords] if node else []
    return any(name_of_call(call) in _UNSEEDED for call in unseeded)


def _copied(batch: Any) -> Any:
    """The batch with arrays of its own.

    TensorFlow 2.21 takes over the memory of NumPy's arrays, also of views and of those that the script keeps, and under
    a strategy with several replicas it writes results into it.
    """
    return tf.nest.map_structure(lambda part: part.copy() if isinstance(part, np.ndarray) else part, batch)


def _hash_batch(batch: Any) -> str:
    hashed = xxhash.xxh3_128()
    for part in tf.nest.flatten(batch):
        array = np.ascontiguousarray(part)
        hashed.update(f"{array.dtype}{array.shape}".encode())
        hashed.update(array.tobytes())
    return str(hashed.hexdigest())


def _hash_on(before: str, batch: Any) -> str:
    """A hash of the batches that `before` is one of, and of some entries of the next."""
    hashed = xxhash.xxh3_64(before.encode())
    for part in tf.nest.flatten(batch):
        entries = np.ascontiguousarray(part).reshape(-1)
        for some in (entries[:_HASHED_ENTRIES], entries[-_HASHED_ENTRIES:]):
            hashed.update(some.tobytes())
    return str(hashed.hexdigest())
