"""A `keras.utils.PyDataset` as data of `fit`: it is asked for the batches that are left."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checks.findings import Finding
from worker.data.python_batches import copy_arrays, draws_unseeded, hash_batch
from worker.internals import keras_data
from worker.keras.data.fit_data import EpochBatches, FitData
from worker.keras.data.kept_attributes import KeptAttributes
from worker.keras.data.read_ahead import ReadAhead
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position

_GENERATORS = (np.random.Generator, np.random.RandomState)


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
            self._keep_attributes()

    def begin_epoch(self) -> None:
        self._dataset.on_epoch_begin()
        self._in_epoch = True
        self._keep_attributes()

    def end_epoch(self) -> None:
        if self._in_epoch:
            self._in_epoch = False
            self._dataset.on_epoch_end()
            self._keep_attributes()

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
            return hash_batch(self._dataset[0])

    def save(self, position: Position) -> Any:
        if not self._in_epoch:  # callbacks may have changed some behind the end of the epoch
            self._keep_attributes()
        saved, arrays = self._kept.kept
        known = self._ahead.draws and not self._parallel and position.batch > 0
        states = self._ahead.states_before(position.batch) if known else None
        return {"seed": self.seed, "attributes": saved, "generators": states}, arrays

    def restore(self, saved: Mapping[str, Any], arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.seed = saved.get("seed", self.seed)
        if "attributes" not in saved:
            return  # these data are of another kind than those before
        self._restored = saved["generators"]
        self._ahead.draws = self._ahead.draws or self._restored is not None
        self.lost = self._kept.restore(saved["attributes"], arrays)

    def _keep_attributes(self) -> None:
        self._kept.keep()
        self.not_saved = self._kept.not_saved

    def unsaveable(self) -> Mapping[str, Any]:
        return self._kept.unsaveable()

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
        if draws_unseeded(inspect.unwrap(type(self._dataset).__getitem__)):
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
            return copy_arrays(self._whole[place])
        return copy_arrays(self._ahead.reading(number, lambda: self._whole[place]))
