"""What a run reads, in a few words: a later start says which of them differ, since it then trains on other data."""

from typing import Any

import tensorflow as tf

from worker.data.examples import Examples
from worker.data.resume_dataset import batch_size_of
from worker.state.dataset_passes import original_dataset, parts_of_dataset, seeds_of

_BATCH_SIZE, _BATCHES = "batch size", "number of batches"


def describe_data(data: Any, dataset: Any) -> dict[str, Any]:
    """What decides which batches come, by name. `data`: what the script gave; `dataset`: what was made of it."""
    described: dict[str, Any] = {"elements": _elements(original_dataset(dataset).element_spec)}
    if isinstance(data, Examples):
        order = f"shuffled with seed {data.seed}" if data.shuffle else "as they are"
        return {**described, "number of examples": data.count, _BATCH_SIZE: data.batch_size, "order": order}
    dataset = original_dataset(dataset)
    drawn = [
        f"{type(each).__name__.strip('_')} {seeds_of(each)}" for each in parts_of_dataset(dataset) if seeds_of(each)
    ]
    described |= {_BATCH_SIZE: batch_size_of(dataset)}
    if not callable(data):  # each epoch may have as many as it likes
        described |= {_BATCHES: int(tf.data.experimental.cardinality(dataset)), "seeds": ", ".join(drawn)}
    return described


def differences(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """What differs, in words."""
    left_out = {_BATCHES} if before.get(_BATCH_SIZE) != now.get(_BATCH_SIZE) else set()
    names = [name for name in now if name in before and before[name] != now[name] and name not in left_out]
    return tuple(f"{name} of the data is {_text(now[name])}, was {_text(before[name])}" for name in names)


def _text(value: Any) -> str:
    return "unknown" if value in (None, tf.data.UNKNOWN_CARDINALITY) else "endless" if value == -1 else str(value)


def _elements(spec: Any) -> str:
    """The types and shapes of one example, without the dimension of the batch."""
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{name}: {_elements(each)}" for name, each in spec.items()) + "}"
    if isinstance(spec, tuple):
        return "(" + ", ".join(map(_elements, spec)) + ")"
    shape = getattr(spec, "shape", None)
    sizes = "?" if shape is None or shape.rank is None else ", ".join("?" if n is None else str(n) for n in shape[1:])
    return f"{getattr(getattr(spec, 'dtype', None), 'name', type(spec).__name__)}[{sizes}]"
