"""Divides a batch into parts that are computed one after the other, so that a step needs less memory."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def parts_of(batch: Any, parts: int) -> Iterator[tuple[Any, float]]:
    """Yields `parts` slices of the batch along its first axis, each with its share of the examples.

    There are fewer slices if the batch has fewer examples. The mean loss over the batch is the sum over the slices of
    share times mean loss; the same holds for the gradients.
    Raises ValueError for a batch that a strategy has spread over replicas; divide those with `accumulate`.
    """
    first = tf.nest.flatten(batch)[0]
    if isinstance(first, tf.distribute.DistributedValues):
        raise ValueError("cannot divide a batch that is spread over replicas; use worker.microbatch.accumulate on each")
    rows = int(first.shape[0])
    count = max(1, min(parts, rows))
    for number in range(count):
        begin, end = number * rows // count, (number + 1) * rows // count
        yield tf.nest.map_structure(lambda part, b=begin, e=end: part[b:e], batch), (end - begin) / max(1, rows)


def accumulate(compute: Callable[[Any], Any], batch: Any, parts: int) -> Any:
    """Returns the sum of `compute(slice)` over `parts` slices of the batch; one slice is in memory at a time.

    Call it inside a tf.function, on each replica. `compute` returns a structure of tensors that can be added, such as
    (loss, gradients), already divided by the size of the whole batch. None stays None; sparse gradients become dense.
    """
    if parts <= 1:
        return compute(batch)
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]
    count = tf.maximum(1, tf.minimum(parts, rows))

    def values(number: Any) -> tuple[Any, list[Any]]:
        begin, end = number * rows // count, (number + 1) * rows // count
        result = compute(tf.nest.map_structure(lambda part: part[begin:end], batch))
        return result, [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(result) if leaf is not None]

    def add(number: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        return number + 1, [total + value for total, value in zip(sums, values(number)[1], strict=True)]

    structure, first = values(tf.constant(0))
    _, sums = tf.while_loop(lambda number, _: number < count, add, (tf.constant(1), first), parallel_iterations=1)
    remaining = iter(sums)
    parts_of_sum = [leaf if leaf is None else next(remaining) for leaf in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, parts_of_sum)
