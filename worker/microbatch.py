"""The same step with less memory: a batch in parts, one after the other, whose gradients are added up."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf


def parts_of(batch: Any, parts: int) -> Iterator[tuple[Any, float]]:
    """The batch in `parts` slices along its first axis (fewer if it has fewer examples), each with its share of it.

    A mean loss over the batch is the sum over the slices of share times their mean loss; so are its gradients.
    Raises ValueError for the batches of a strategy with several replicas, which are divided on each (`accumulate`).
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
    """The sum of what `compute` gives for each of `parts` slices of the batch; one slice is in memory at a time.

    For use inside a tf.function, on each replica. `compute` gives a structure of tensors that can be added, such as
    (loss, gradients), already divided by the size of the whole batch; None stays None, sparse gradients become dense.
    """
    if parts <= 1:
        return compute(batch)
    rows = tf.shape(tf.nest.flatten(batch)[0])[0]
    count = tf.maximum(1, tf.minimum(parts, rows))

    def values(number: Any) -> tuple[Any, list[Any]]:
        begin, end = number * rows // count, (number + 1) * rows // count
        found = compute(tf.nest.map_structure(lambda part: part[begin:end], batch))
        return found, [tf.convert_to_tensor(each) for each in tf.nest.flatten(found) if each is not None]

    def add(number: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        return number + 1, [total + each for total, each in zip(sums, values(number)[1], strict=True)]

    shape, first = values(tf.constant(0))
    _, sums = tf.while_loop(lambda number, _: number < count, add, (tf.constant(1), first), parallel_iterations=1)
    left = iter(sums)
    return tf.nest.pack_sequence_as(shape, [each if each is None else next(left) for each in tf.nest.flatten(shape)])
