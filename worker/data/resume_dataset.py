"""Skips the consumed examples of a dataset, also if its batches have another size than before."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from supervisor.protocol.plurals import counted
from worker.data import collectives
from worker.internals import dataset_internals
from worker.state.state_file import Position

Batch = Any
"""An element of a dataset; under a strategy with several replicas, a per-replica value."""

END_OF_DATA = object()
_UNCUTTABLE = "cannot resume in the middle of a batch"


def skip_consumed(dataset: tf.data.Dataset, position: Position) -> tf.data.Dataset:
    """The rest of `dataset` after the consumed examples, also if the batches have another size than before.

    If a batch would have to be cut and can't be, reading it raises an error that `explain_uncuttable` understands.
    """
    if position.examples is None or position.examples == position.batch * (batch_size_of(dataset) or 0):
        return dataset.skip(position.batch)  # batches have the same size as before
    first = next(iter(tf.nest.flatten(dataset.element_spec)), None)
    if isinstance(first, tf.TensorSpec) and first.shape.rank == 0:
        return dataset.skip(position.examples)  # single examples
    return _cut(dataset, position.examples)


def batch_size_of(dataset: tf.data.Dataset) -> int | None:
    """The number of examples in each batch, except perhaps the last; None if TensorFlow can't tell."""
    specs = tf.nest.flatten(dataset.element_spec)
    if specs and isinstance(specs[0], tf.TensorSpec) and specs[0].shape.rank == 0:
        return 1
    try:
        size = dataset_internals.batch_size_of(dataset)
    except (ValueError, TypeError, IndexError, AttributeError, tf.errors.OpError):
        return None
    return size if size > 0 else None


def _cut(dataset: tf.data.Dataset, examples: int) -> tf.data.Dataset:
    can_cut = _can_be_cut(dataset)
    text = (
        f"{_UNCUTTABLE}: {counted(examples, 'example')} into the epoch, its batches have another size than when the "
        f"checkpoint was written, and they contain parts without a row for each example, which can't be cut; use a "
        f"batch size with which a batch ends there, batches whose parts all have one row for each example, or "
        f"worker.Examples"
    )

    def cut(ahead: tf.Tensor, batch: Any) -> tuple[tf.Tensor, Any]:
        rows = rows_tensor(batch)
        drop = tf.minimum(ahead, rows)
        if can_cut:
            batch = tf.nest.map_structure(lambda part: _drop_rows(part, drop), batch)
        else:
            tf.debugging.Assert(tf.logical_or(tf.equal(drop, 0), tf.equal(drop, rows)), [text])
        return ahead - drop, (rows > drop, batch)

    rest = dataset.scan(tf.constant(examples, tf.int64), cut)
    rest = rest.filter(lambda some, batch: some)
    return rest.map(lambda some, batch: batch)


def _can_be_cut(dataset: tf.data.Dataset) -> bool:
    """Whether every part of a batch has one row for each example."""
    sizes = set()
    for spec in tf.nest.flatten(dataset.element_spec):
        if isinstance(spec, tf.TensorSpec) and spec.shape.rank == 0:
            return False
        if isinstance(spec, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec):
            sizes.add(spec.shape[0] if spec.shape.rank else None)
        elif not is_none_spec(spec):
            return False
    return len(sizes - {None}) <= 1


def is_none_spec(spec: Any) -> bool:
    """Whether a spec is that of None, a type without a public name."""
    return type(spec).__name__ == "NoneTensorSpec"


def _drop_rows(part: Any, drop: tf.Tensor) -> Any:
    """One part of a batch without its first rows."""
    if part is None:
        return None
    if isinstance(part, tf.SparseTensor):
        start = tf.concat([[drop], tf.zeros_like(part.dense_shape[1:])], axis=0)
        return tf.sparse.slice(part, start, part.dense_shape - start)
    return part[drop:]


def rows_tensor(batch: Any) -> tf.Tensor:
    """The number of examples in a batch, as an int64 tensor: the rows of its first part; 1 if that is a scalar."""
    first = next((part for part in tf.nest.flatten(batch) if part is not None), None)
    if isinstance(first, tf.RaggedTensor):
        return first.nrows(out_type=tf.int64)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if first is None or first.shape.rank == 0:
        return tf.constant(1, tf.int64)
    return tf.shape(first, out_type=tf.int64)[0]


def count_rows(batch: Batch) -> int:
    """The number of examples in a batch, over all replicas: the rows of its first part but None; 1 for scalars."""
    of_replicas: list[tuple[Any, ...]] = [
        part.values if isinstance(part, tf.distribute.DistributedValues) else (part,) for part in tf.nest.flatten(batch)
    ]
    first: tuple[Any, ...] = next((parts for parts in of_replicas if any(part is not None for part in parts)), (None,))
    return sum(int(part.shape[0]) if len(getattr(part, "shape", ())) > 0 else 1 for part in first)


def skip_distributed(dataset: Any, position: Position, gang: collectives.Gang | None) -> Iterator[Batch]:
    """The rest of a distributed dataset. All processes of `gang` read its first batches and drop them."""
    iterator: Iterator[Batch] = iter(dataset)
    if position.examples is None:
        for _ in range(position.batch):
            next(iterator, None)
        return iterator
    ahead = position.examples
    while ahead > 0 and (batch := next(iterator, END_OF_DATA)) is not END_OF_DATA:
        rows = count_rows(batch)
        ahead -= rows if gang is None else gang.sum([rows])[0]
    if ahead < 0:
        raise ValueError(
            f"{_UNCUTTABLE} of a distributed dataset: the checkpoint was written with another batch size; give "
            f"run.batches the tf.data.Dataset itself"
        )
    return iterator


def explain_uncuttable(error: tf.errors.OpError) -> ValueError | None:
    """The plain cause of an error about a batch that can't be cut; None for any other error."""
    _, beginning, rest = str(error.message).partition(_UNCUTTABLE)
    return ValueError(beginning + rest.partition("worker.Examples")[0] + "worker.Examples") if beginning else None
