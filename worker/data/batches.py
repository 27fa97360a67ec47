"""Reads batches from any position on, from seekable examples, a tf.data dataset, or one dataset per epoch."""

import ctypes
from collections.abc import Iterator
from typing import Any, Protocol

import tensorflow as tf

from supervisor.protocol.plurals import counted
from worker.data import collectives
from worker.data.description import describe_data
from worker.data.examples import Examples
from worker.data.resume_dataset import (
    END_OF_DATA,
    Batch,
    count_rows,
    explain_uncuttable,
    skip_consumed,
    skip_distributed,
)
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position


class BatchSource(Protocol):
    """Data that can be read from a position on."""

    def is_over(self, position: Position) -> bool:
        """Whether the epoch ends at `position`, although the dataset of `open` continues with the next one."""

    def open(self, position: Position) -> Any:
        """A dataset whose first batch is the one at `position`."""


class _DatasetPerEpoch:
    """Finite tf.data datasets: one pass is an epoch.

    To resume, everything that is skipped is computed, so it takes as long as reading up to there. `passes` brings the
    order of that epoch back.

    Several processes divide the rows of each batch between them, unless the dataset has another policy: TensorFlow's
    default gives each process some of the files, and then a position in the whole dataset would have no meaning.
    """

    def __init__(
        self,
        data: Any,
        strategy: tf.distribute.Strategy | None = None,
        gang: collectives.Gang | None = None,
        passes: PassLog | None = None,
    ) -> None:
        self._data = data
        self._passes = passes or PassLog()
        self._strategy = strategy
        self._gang = gang

    def is_over(self, position: Position) -> bool:
        """Always False: only the end of the dataset ends the epoch."""
        return False

    def open(self, position: Position) -> Any:
        source = self._given(position.epoch)
        self._passes.begin(source, position.epoch)
        dataset = shared_by_rows(source)
        if position.batch == 0:
            return dataset
        if isinstance(dataset, tf.distribute.DistributedDataset):
            self._check_workers(position)
            return skip_distributed(dataset, position, self._gang)
        if _sharding_policy(dataset) is not _Sharding.DATA:
            self._check_workers(position)
            if self._gang is not None and self._strategy is not None:
                return skip_distributed(self._strategy.experimental_distribute_dataset(dataset), position, self._gang)
        return skip_consumed(dataset, position)

    def skip(self, position: Position) -> None:
        """The data of the epoch have ended, perhaps in another process: the next epoch has the order after that."""
        self._passes.skip(self._given(position.epoch))

    def _given(self, epoch: int) -> Any:
        if not callable(self._data):
            return self._data
        self._passes.is_made_anew = True
        return self._passes.make_dataset(self._data, epoch)

    def _check_workers(self, position: Position) -> None:
        workers = 1 if self._gang is None else self._gang.size
        if position.workers not in (None, workers):
            processes = counted(workers, "process", "processes")
            raise ValueError(
                f"cannot resume in the middle of epoch {position.epoch} with {processes}: {position.workers} began it, "
                f"each with a dataset of its own, so it is unknown which examples are left; finish the epoch with "
                f"{position.workers}, or give run.batches the tf.data.Dataset itself, without an auto_shard_policy"
            )


_Sharding = tf.data.experimental.AutoShardPolicy


def _sharding_policy(dataset: tf.data.Dataset) -> Any:
    return dataset.options().experimental_distribute.auto_shard_policy


def shared_by_rows(dataset: Any) -> Any:
    """The dataset with the policy that processes divide each batch by rows, if it has no policy of its own."""
    if not isinstance(dataset, tf.data.Dataset) or _sharding_policy(dataset) is not _Sharding.AUTO:
        return dataset
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _Sharding.DATA
    return dataset.with_options(options)


def check_shared_by_rows(dataset: tf.data.Dataset, workers: int) -> None:
    """Raises ValueError if each of `workers` would read a dataset of its own, in which no common position exists."""
    policy = _sharding_policy(shared_by_rows(dataset))
    if workers > 1 and policy is not _Sharding.DATA:
        raise ValueError(
            f"cannot fit on {workers} workers with auto_shard_policy {policy.name}: each would read a dataset of its "
            f"own, so it would be unknown which examples are left in the middle of an epoch; remove the policy, or use "
            f"run.batches of worker.Run, which can resume with the same number of workers"
        )


def as_batch_source(
    data: Any,
    strategy: tf.distribute.Strategy | None = None,
    gang: collectives.Gang | None = None,
    passes: PassLog | None = None,
) -> BatchSource:
    """The argument of `run.batches` as a source. Raises TypeError for data that can't be resumed.

    `passes`: the run's; call its `opened` once an iterator of what `open` returns was made, and `end` at its end.
    """
    if isinstance(data, Examples):
        return data
    if isinstance(data, tf.data.Dataset | tf.distribute.DistributedDataset) or callable(data):
        return _DatasetPerEpoch(data, strategy, gang, passes)
    raise TypeError(
        f"cannot resume in the middle of a {type(data).__name__}; give the data as worker.Examples (of arrays, or "
        f"with load=), as a tf.data.Dataset, or as a function from the epoch to its dataset"
    )


class BatchReader:
    """Reads the batches of one source, spread over the replicas. `position` is behind the last batch read."""

    def __init__(
        self,
        data: Any,
        strategy: tf.distribute.Strategy | None,
        position: Position,
        skipped: frozenset[tuple[int, int]] = frozenset(),
        gang: collectives.Gang | None = None,
        passes: PassLog | None = None,
    ) -> None:
        """`skipped`: (epoch, batch) of each batch to skip. `gang`: the processes that divide the batches. `passes`: the
        run's log of its passes over the data."""
        self.data = data
        self.position = position
        self.consumed = position
        """Behind the last batch that was handed out, also when `position` is in the next epoch already."""
        self._passes = passes or PassLog()
        self._source = as_batch_source(data, strategy, gang, self._passes)
        self._gang = gang
        self._strategy = strategy
        self._skipped = skipped
        self._handed_out: list[tuple[int, int]] = []
        self.rows: int | None = None
        """The number of examples in the last batch; None: unknown."""
        self._iterator: Iterator[Batch] | None = None
        self._fresh = position.batch == 0

    def rest_of_epoch(self) -> Iterator[Batch]:
        """Yields the remaining batches of the current epoch. Raises ValueError if a whole epoch has none."""
        while not self._source.is_over(self.position):
            batch = self._next()
            if batch is END_OF_DATA:
                self._end_epoch()
                return
            number = self.position.epoch, self.position.batch
            self.rows = self._rows(batch)
            self._advance(batch)
            if number in self._skipped:
                continue
            self._handed_out.append(number)
            self.consumed = self.position
            yield batch
        self.position = Position(self.position.epoch + 1)  # the dataset of `open` goes on with it

    def skip_epoch(self) -> None:
        """The data of the current epoch have ended, perhaps in another process. Reads nothing."""
        if isinstance(self._source, _DatasetPerEpoch):
            self._source.skip(self.position)
            self._describe(self._passes.data)
            self._passes.described_skipped = self._passes.described

    def pop_handed_out(self) -> list[tuple[int, int]]:
        """(epoch, batch) of the batches read since the last call."""
        handed_out, self._handed_out = self._handed_out, []
        return handed_out

    def abandon(self) -> None:
        """Leaks the iterator, so that its destructor never runs.

        The destructor waits for TensorFlow's tuning thread (tensorflow::data::model::Model::OptimizeLoop). Up to 25 s
        were seen, as long as a preemption notice. So the object gets a reference that is never released.
        """
        if self._iterator is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._iterator))
            self._iterator = None

    def _next(self) -> Batch:
        try:
            return next(self._open_iterator(), END_OF_DATA)
        except tf.errors.OpError as error:
            if (cause := explain_uncuttable(error)) is not None:
                raise cause from error
            raise

    def _open_iterator(self) -> Iterator[Batch]:
        if self._iterator is None:
            self._fresh = self.position.batch == 0
            if not self._fresh and self._gang is not None and not isinstance(self._source, Examples):
                self.position = self._gang.merge_shares(self.position)
            opened = self._source.open(self.position)
            if not isinstance(opened, Iterator):
                self._describe(opened)
            self._iterator = iter(self._distribute(opened))
            self._passes.opened()
        return self._iterator

    def _describe(self, opened: Any) -> None:
        passes = self._passes
        if (read := passes.data or opened) is not None:
            passes.described = describe_data(self.data, read, self.position.epoch, passes.last_described)

    def _distribute(self, dataset: Any) -> Any:
        if self._strategy is not None and isinstance(dataset, tf.data.Dataset):
            return self._strategy.experimental_distribute_dataset(dataset)
        return dataset

    def _rows(self, batch: Batch) -> int | None:
        """The number of examples in a global batch; None if this process sees only its part of it."""
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

    def _end_epoch(self) -> None:
        if self._fresh and self.position.batch == 0:
            raise ValueError(f"cannot train: the dataset of epoch {self.position.epoch} has no batches")
        self._iterator = None
        self._passes.end()
        self.position = Position(self.position.epoch + 1)
