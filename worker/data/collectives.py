"""Communication between the processes that train together under MultiWorkerMirroredStrategy.

Everything is built on one collective operation, a sum of integers over the workers. It uses the same transport as
TensorFlow's collectives, within a host or between hosts, and fails like them when a worker is gone. All workers must
make the same calls in the same order, on the thread that trains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from worker.state.state_file import Position

_WORD_BYTES = 8
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Gang:
    """The workers that train together. `rank`: the number of this one; 0 is the chief. `size`: how many there are."""

    rank: int
    size: int
    _sum: Any

    @property
    def is_chief(self) -> bool:
        """Whether this is the worker that decides, writes checkpoints and reports."""
        return self.rank == 0

    def sum(self, numbers: Sequence[int]) -> list[int]:
        """The sum over all workers of each number. All workers pass the same count of numbers."""
        return [int(number) for number in self._summed(np.array(numbers, np.int64))]

    def from_chief(self, numbers: Sequence[int]) -> list[int]:
        """The chief's numbers. The others pass as many, of any value."""
        return self.sum(numbers if self.is_chief else [0] * len(numbers))

    def text_from_chief(self, text: str) -> str:
        """The chief's text. The others pass any."""
        return self.gather(text.encode() if self.is_chief else b"")[0].decode()

    def merge_shares(self, position: Position) -> Position:
        """The position with the `share` of all workers added to its examples."""
        shares = self.sum([position.share])[0]
        examples = None if position.examples is None else position.examples + shares
        return replace(position, examples=examples, share=0)

    def gather(self, part: bytes) -> list[bytes]:
        """Each worker's part, by rank. Every worker gets all of them. For a few megabytes at most."""
        lengths = self.sum([len(part) if rank == self.rank else 0 for rank in range(self.size)])
        words = max(1, math.ceil(max(lengths) / _WORD_BYTES))
        table = self.gather_numbers(np.frombuffer(part.ljust(words * _WORD_BYTES, b"\0"), np.int64))
        return [table[rank].tobytes()[:length] for rank, length in enumerate(lengths)]

    def gather_numbers(self, numbers: Numbers) -> Numbers:
        """Each worker's numbers, a row for each rank. All workers pass the same count of numbers."""
        table = np.zeros((self.size, len(numbers)), np.int64)
        table[self.rank] = numbers
        summed: Numbers = self._summed(table.reshape(-1))
        return summed.reshape(table.shape)

    def _summed(self, numbers: Any) -> Any:
        return self._sum(tf.constant(numbers, tf.int64))


def worker_count(strategy: tf.distribute.Strategy | None) -> int:
    """The number of processes that train together under a strategy; 1 for strategies of one process."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return len(_tasks(strategy.cluster_resolver)) or 1


def processes_of_cluster() -> int:
    """The number of processes that train together, as TF_CONFIG says, whatever the strategy; 0 without it."""
    return len(_tasks(tf.distribute.cluster_resolver.TFConfigClusterResolver()))


def jobs_of(strategy: tf.distribute.Strategy) -> list[tuple[str, int]]:
    """TensorFlow's jobs that train and how many workers each has, in the order of ranks."""
    tasks = [kind for kind, _ in _tasks(strategy.cluster_resolver)]
    return [(kind, tasks.count(kind)) for kind in dict.fromkeys(tasks)]


def gang_of(strategy: tf.distribute.Strategy | None) -> Gang | None:
    """The gang of a strategy; None if this process trains alone. Raises ValueError for a task that does not train."""
    if strategy is None or worker_count(strategy) == 1:
        return None
    resolver = strategy.cluster_resolver
    tasks = _tasks(resolver)
    mine = resolver.task_type, resolver.task_id
    if mine not in tasks:
        raise ValueError(f"cannot train as task {mine[0]} {mine[1]} of TF_CONFIG: only the chief and the workers train")
    return Gang(tasks.index(mine), len(tasks), _make_sum(strategy))


def _tasks(resolver: Any) -> list[tuple[str, int]]:
    """All tasks that train, the chief first. TensorFlow makes the first worker the chief if there is no chief task."""
    cluster = resolver.cluster_spec().as_dict()
    return [(kind, number) for kind in ("chief", "worker") for number in range(len(cluster.get(kind, ())))]


def _make_sum(strategy: tf.distribute.Strategy) -> Any:
    local = strategy.extended.worker_devices

    def on_replica(numbers: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        first = tf.equal(context.replica_id_in_sync_group % len(local), 0)  # one replica contributes for its worker
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(first, numbers, tf.zeros_like(numbers)))

    # there is nothing to convert, which takes time at each start
    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)  # type: ignore[untyped-decorator]
    def on_all(numbers: tf.Tensor) -> Any:
        return strategy.run(on_replica, args=(numbers,))

    def summed(numbers: tf.Tensor) -> Any:
        return strategy.experimental_local_results(on_all(numbers))[0].numpy()

    return summed
