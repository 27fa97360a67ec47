"""A Python generator as data of `fit`: it is read on from its beginning."""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from worker.checks.findings import Finding
from worker.checks.reachability import parts_of_script, walk
from worker.data.python_batches import copy_arrays, draws_unseeded, hash_batch, hash_on
from worker.internals import keras_data
from worker.keras.data.fit_data import EpochBatches, FitData
from worker.keras.data.read_ahead import LookAhead, ReadAhead, generators_in, roots_of_generator
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position


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
        restored, self._restored = self._restored or {}, None
        self._read, self._starts = {}, self._ahead.states()
        if restored and position.batch > 0:
            if restored["draws"]:
                self._ahead.draws = True
                self._ahead.write(restored["starts"])
            self._starts = restored["starts"]
        batches = self._iterate(position.epoch)
        if position.batch > 0:
            self._skip(batches, position, restored.get("read"))
        ending = LookAhead(self._hashing(batches, position), position.batch, self._ahead)
        dataset = keras_data.read_generator(map(copy_arrays, ending), self._signature)
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
        if "first" in saved:  # else these data are of another kind than those before
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
            if any(map(draws_unseeded, generators_in(self._data))):
                self._problems.append(Finding(f"a generator without a seed in {name}", "give it a seed"))
            return
        with self._ahead.undisturbed() as states:
            first = self._first_batches()
            self._ahead.draws = states != self._ahead.states()
        with self._ahead.undisturbed():
            again = self._first_batches()
        self._peeked = [hash_batch(batch) for batch in first]
        if self._peeked != [hash_batch(batch) for batch in again]:
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
        """Reads the batches before a position again. `read_before`: a hash of them; None: it is not known, and of the
        first batch neither if other data were trained on before."""
        hashed = ""
        for number in range(position.batch):
            batch = next(batches, None)
            if number == 0 and self._first is None:
                self._first = hash_batch(batch)
            elif number == 0 and hash_batch(batch) != self._first:
                raise ValueError(self._other_batches("its first batch is another one"))
            hashed = hash_on(hashed, batch)
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
                self._first = hash_batch(batch)
            self._read[number + 1] = hash_on(self._read.get(number, ""), batch)
            yield batch


def _takes_epoch(function: Any) -> bool:
    """Whether a function can be called with the epoch."""
    try:
        inspect.signature(function).bind(0)
    except TypeError:
        return False
    return True
