"""Batches from any position on: seekable examples, tf.data datasets, or one dataset an epoch."""

import ctypes
import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import tensorflow as tf

from supervisor.protocol.wording import counted
from worker.data import collectives
from worker.data.resume_dataset import (
    END_OF_DATA,
    Batch,
    count_rows,
    explain_uncuttable,
    skip_consumed,
    skip_distributed,
)
from worker.state.state_file import Position


class Examples:
    """Arrays in memory, or what a function loads, in a new order each epoch, that can begin anywhere at no cost.

    The order is a function of (seed, epoch, index): nothing is shuffled in a buffer and nothing has to be skipped. The
    examples that do not fill a last batch are left out of that epoch; the next one leaves out others.
    """

    def __init__(
        self,
        *arrays: Any,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        count: int | None = None,
        load: Callable[[tf.Tensor], Any] | None = None,
        readers: int = 2,
    ) -> None:
        """`arrays`: one entry per example, all equally long; a batch is a tuple of their slices (bare for one array).

        Or `count` examples that `load` gives, each for its index (int64 scalar, 0 to count - 1): tensors of the same
        shapes for all, as a `tf.data.Dataset.map` has them. `readers` of them are loaded side by side; the order is
        the same for any number. `batch_size` is the global one, over all replicas.
        Raises ValueError for lengths that differ or are too small, and for both or neither of the two ways.
        """
        if (load is None) != (count is None) or (load is None) != bool(arrays):
            raise ValueError("cannot make examples: give either arrays, or count= and load=")
        if readers < 1:
            raise ValueError(f"cannot read examples with {readers} readers; use 1 or more")
        self._tensors = tuple(tf.convert_to_tensor(array) for array in arrays)
        counts = {int(tensor.shape[0]) for tensor in self._tensors} if count is None else {int(count)}
        if len(counts) != 1:
            raise ValueError(f"cannot make examples of arrays with {sorted(counts)} entries; give all the same number")
        (self.count,) = counts
        if not 1 <= batch_size <= self.count:
            raise ValueError(
                f"cannot make batches of {batch_size} from {counted(self.count, 'example')}; use 1 to {self.count}"
            )
        self.batch_size = int(batch_size)  # NumPy's is not JSON's
        self.load = load
        """What gives an example; None for arrays."""
        self._seed = seed
        self._shuffle = shuffle
        self._readers = readers

    @property
    def per_epoch(self) -> int:
        """Whole batches in one epoch."""
        return self.count // self.batch_size

    def is_over(self, position: Position) -> bool:
        """Whether the examples that are left of the epoch make no whole batch."""
        return self.count - self.consumed(position) < self.batch_size

    def open(self, position: Position) -> tf.data.Dataset:
        """The batches from `position` on, without end. The position is one of examples: the batches before it may have
        had another size."""
        first = self.consumed(position)
        left = (self.count - first) // self.batch_size  # batches of this epoch

        def rows_of_batch(number: tf.Tensor) -> tf.Tensor:
            later = number - left
            here = later < 0
            epoch = tf.constant(position.epoch, tf.int64)
            return self._row_indices(
                tf.where(here, epoch, epoch + 1 + later // self.per_epoch),
                tf.where(here, first + number * self.batch_size, later % self.per_epoch * self.batch_size),
            )

        numbers = tf.data.Dataset.range(2**62)
        if self.load is None:
            batches = numbers.map(lambda number: self._gather(rows_of_batch(number)), **self._parallel)
        else:
            rows = numbers.map(rows_of_batch).unbatch()  # whole batches of them are ten times as fast
            batches = rows.map(self.load, **self._parallel).batch(self.batch_size, drop_remainder=True)
            threads = tf.data.Options()  # else as many load at once as there are cores, which is few for files
            threads.threading.private_threadpool_size = max(self._readers, os.cpu_count() or 1)
            batches = batches.with_options(threads)
        return batches.prefetch(2)

    def consumed(self, position: Position) -> int:
        """How many examples of the epoch are consumed there."""
        return position.batch * self.batch_size if position.examples is None else position.examples

    @property
    def _parallel(self) -> dict[str, Any]:
        return {"num_parallel_calls": self._readers, "deterministic": True}

    def _row_indices(self, epoch: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        rows = start + tf.range(self.batch_size, dtype=tf.int64)
        if not self._shuffle:
            return rows
        key = tf.stack([tf.constant(self._seed, tf.int64), epoch])
        return tf.random.experimental.index_shuffle(rows, seed=key, max_index=self.count - 1)

    def _gather(self, rows: tf.Tensor) -> Batch:
        batch = tuple(tf.gather(tensor, rows) for tensor in self._tensors)
        return batch if len(batch) > 1 else batch[0]


class BatchSource(Protocol):
    """Something that yields batches from a position on."""

    def is_over(self, position: Position) -> bool:
        """Whether the epoch is at its end there, although what `open` gives goes on with the next one."""

    def open(self, position: Position) -> Any:
        """A dataset that begins with the batch at `position`."""


class _DatasetPerEpoch:
    """A finite tf.data.Dataset: one pass is an epoch. A resume runs everything that is skipped, so late in a long epoch
    it takes as long as reading up to there. With `shuffle(reshuffle_each_iteration=True)` and no seed the order after a
    resume is another one: use a seeded shuffle in a function of the epoch, or `worker.Examples`.

    Several processes share out the rows of each batch, unless the dataset says otherwise: where there are files,
    TensorFlow would give each process some of its own, and a position in the whole would mean nothing to them."""

    def __init__(
        self,
        of_epoch: Callable[[int], Any],
        strategy: tf.distribute.Strategy | None = None,
        gang: collectives.Gang | None = None,
    ) -> None:
        self._of_epoch = of_epoch
        self._strategy = strategy
        self._gang = gang

    def is_over(self, position: Position) -> bool:
        """Only its end says so."""
        return False

    def open(self, position: Position) -> Any:
        dataset = _shared_by_rows(self._of_epoch(position.epoch))
        if position.batch == 0:
            return dataset
        if isinstance(dataset, tf.distribute.DistributedDataset):
            self._prove_workers(position)
            return skip_distributed(dataset, position, self._gang)
        if _sharding_policy(dataset) is not _Sharding.DATA:
            self._prove_workers(position)
            if self._gang is not None and self._strategy is not None:
                return skip_distributed(self._strategy.experimental_distribute_dataset(dataset), position, self._gang)
        return skip_consumed(dataset, position)

    def _prove_workers(self, position: Position) -> None:
        workers = 1 if self._gang is None else self._gang.size
        if position.workers not in (None, workers):
            processes = counted(workers, "process", "processes")
            raise ValueError(
                f"cannot go on in the middle of epoch {position.epoch} with {processes}: {position.workers} "
                f"shared it out, each by a dataset of its own, so nobody knows which examples are left; train with "
                f"{position.workers} to its end, and give run.batches the tf.data.Dataset itself, without an "
                f"auto_shard_policy"
            )


_Sharding = tf.data.experimental.AutoShardPolicy


def _sharding_policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy


def _shared_by_rows(dataset: Any) -> Any:
    """The same, whose batches several processes share out row by row, if it doesn't say what they shall do."""
    if not isinstance(dataset, tf.data.Dataset) or _sharding_policy(dataset) is not _Sharding.AUTO:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _Sharding.DATA
    return dataset.with_options(options)


def check_shared_by_rows(dataset: tf.data.Dataset, workers: int) -> None:
    """Raises ValueError where so many workers would each read a dataset of its own: its rows are no one's position."""
    policy = _sharding_policy(_shared_by_rows(dataset))
    if workers > 1 and policy is not _Sharding.DATA:
        raise ValueError(
            f"cannot fit on {workers} workers with auto_shard_policy {policy.name}: each would read a dataset of its "
            f"own, so nobody knows which examples are left in the middle of an epoch; leave the policy out, or give "
            f"the dataset to run.batches of worker.Run, which goes on with as many workers"
        )


def as_batch_source(
    given: Any, strategy: tf.distribute.Strategy | None = None, gang: collectives.Gang | None = None
) -> BatchSource:
    """What `run.batches` was given, as a source. Raises TypeError for what can't be resumed."""
    if isinstance(given, Examples):
        return given
    if isinstance(given, tf.data.Dataset | tf.distribute.DistributedDataset):
        return _DatasetPerEpoch(lambda epoch: given, strategy, gang)
    if callable(given):
        return _DatasetPerEpoch(given, strategy, gang)
    raise TypeError(
        f"cannot resume in the middle of a {type(given).__name__}; give the data as a worker.Examples (of arrays, or "
        f"with load=), a tf.data.Dataset, or a function that makes the dataset of an epoch"
    )


class BatchReader:
    """The batches of one source over the replicas of a strategy; `position` counts those handed out."""

    def __init__(
        self,
        given: Any,
        strategy: tf.distribute.Strategy | None,
        position: Position,
        left_out: frozenset[tuple[int, int]] = frozenset(),
        gang: collectives.Gang | None = None,
    ) -> None:
        """`left_out`: (epoch, batch) of those that nobody gets. `gang`: the processes that share out the rest."""
        self.given = given
        self.position = position
        self._source = as_batch_source(given, strategy, gang)
        self._gang = gang
        self._strategy = strategy
        self._left_out = left_out
        self._handed_out: list[tuple[int, int]] = []
        self.rows: int | None = None
        """How many examples the last batch held; None: not known."""
        self._iterator: Iterator[Batch] | None = None
        self._fresh = position.batch == 0

    def rest_of_epoch(self) -> Iterator[Batch]:
        """The batches that are left of the present epoch. Raises ValueError if a whole epoch has none."""
        epoch = self.position.epoch
        if self._source.is_over(self.position):  # larger batches than before
            self._end_epoch()
        while self.position.epoch == epoch:
            batch = self._next()
            if batch is END_OF_DATA:
                self._end_epoch()
                return
            this = self.position.epoch, self.position.batch
            self.rows = self._rows(batch)
            self._advance(batch)
            if this in self._left_out:
                continue
            self._handed_out.append(this)
            yield batch

    def pop_handed_out(self) -> list[tuple[int, int]]:
        """(epoch, batch) of those handed out since the last time."""
        taken, self._handed_out = self._handed_out, []
        return taken

    def abandon(self) -> None:
        """Leaves the iterator to the end of the process, which takes it at once.

        Its destructor waits for TensorFlow's tuning thread (tensorflow::data::model::Model::OptimizeLoop), up to 25 s
        where it was seen: as much as a preemption notice. So the object gets a reference that is never given back.
        """
        if self._iterator is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._iterator))
            self._iterator = None

    def _next(self) -> Batch:
        try:
            return next(self._open_iterator(), END_OF_DATA)
        except tf.errors.OpError as error:
            if (plain := explain_uncuttable(error)) is not None:
                raise plain from error
            raise

    def _open_iterator(self) -> Iterator[Batch]:
        if self._iterator is None:
            self._fresh = self.position.batch == 0
            if not self._fresh and self._gang is not None and not isinstance(self._source, Examples):
                self.position = self._gang.merge_shares(self.position)
            self._iterator = iter(self._distribute(self._source.open(self.position)))
        return self._iterator

    def _distribute(self, dataset: Any) -> Any:
        if self._strategy is not None and isinstance(dataset, tf.data.Dataset):
            return self._strategy.experimental_distribute_dataset(dataset)
        return dataset

    def _rows(self, batch: Batch) -> int | None:
        """How many examples a global batch holds; None where this process sees only its part of it, and can't know."""
        if self._gang is None:
            return count_rows(batch)
        return self._source.batch_size if isinstance(self._source, Examples) else None

    def _advance(self, batch: Batch) -> None:
        before, examples, share = self.position, self.position.examples, 0
        workers = 1 if self._gang is None else self._gang.size
        if examples is not None and self.rows is not None:
            examples += self.rows
        elif examples is not None:
            share = before.share + count_rows(batch)
        self.position = Position(before.epoch, before.batch + 1, examples, share, workers)
        if self._source.is_over(self.position):
            self.position = Position(before.epoch + 1)

    def _end_epoch(self) -> None:
        if self._fresh and self.position.batch == 0:
            raise ValueError(f"cannot train: the dataset of epoch {self.position.epoch} has no batches")
        self._iterator = None
        self.position = Position(self.position.epoch + 1)
