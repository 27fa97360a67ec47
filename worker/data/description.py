"""What a run reads, in a few words: a later start says which of them differ, since it then trains on other data."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from worker.data.examples import Examples
from worker.data.resume_dataset import batch_size_of
from worker.internals.dataset_internals import original_dataset, seeds_of, tensors_in
from worker.state.dataset_parts import parts_of_dataset
from worker.state.description import (
    BATCH_SIZE,
    BATCHES,
    CONTENT,
    batches_of_epoch,
    rows_of_array,
    sample_of_content,
)


def describe_data(data: Any, dataset: Any, epoch: int, before: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which batches come, by name. `data`: what the script gave; `dataset`: what was made of it for the
    epoch. `before`: the description before this one."""
    described: dict[str, Any] = {"elements": _elements(original_dataset(dataset).element_spec)}
    if isinstance(data, Examples):
        order = f"shuffled with seed {data.seed}" if data.shuffle else "as they are"
        described |= {"number of examples": data.count, BATCH_SIZE: data.batch_size, "order": order}
        return {**described, **_content(data.tensors)}
    dataset = original_dataset(dataset)
    drawn = [
        f"{type(part).__name__.strip('_')} {seeds_of(part)}" for part in parts_of_dataset(dataset) if seeds_of(part)
    ]
    described |= {BATCH_SIZE: batch_size_of(dataset)}
    batches = int(tf.data.experimental.cardinality(dataset))
    if callable(data):  # each epoch may have other examples
        return {**described, **batches_of_epoch(epoch, batches, before)}
    described |= {BATCHES: batches, "seeds": ", ".join(drawn)}
    return {**described, **_content(tensor for part in parts_of_dataset(dataset) for tensor in _tensors_of(part))}


def _tensors_of(part: Any) -> Iterator[Any]:
    """The tensors in memory that a part of a dataset is made of: arrays, names of files."""
    for tensor in tensors_in(part):
        if isinstance(tensor, tf.Tensor) and hasattr(tensor, "numpy"):
            yield tensor


def _content(tensors: Iterable[Any]) -> dict[str, str]:
    rows = [part for tensor in tensors if (part := rows_of_array(tensor)) is not None]
    return {CONTENT: sample_of_content(rows)} if rows else {}


def _elements(spec: Any) -> str:
    """The types and shapes of one example, without the dimension of the batch."""
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{name}: {_elements(part)}" for name, part in spec.items()) + "}"
    if isinstance(spec, tuple):
        return "(" + ", ".join(map(_elements, spec)) + ")"
    shape = getattr(spec, "shape", None)
    sizes = "?" if shape is None or shape.rank is None else ", ".join("?" if n is None else str(n) for n in shape[1:])
    return f"{getattr(getattr(spec, 'dtype', None), 'name', type(spec).__name__)}[{sizes}]"
