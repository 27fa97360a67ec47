"""The shapes and types of a job's batches: recorded by the worker that trains, read by a standby that traces ahead.

The standby must not open the job's data, because a shuffled dataset yields another order when it is read a second time.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol import durable, layout
from supervisor.protocol.formats import KEY, check_format, refuse_newer
from supervisor.protocol.plurals import counted
from worker.process.attempt import Attempt

FORMAT = 1
MAX_BYTES = 1 << 20


class UnknownBatchSpec(Exception):
    """There is no usable description of the batches; the text says why."""


def recorder(present: Attempt) -> Callable[[Any, Any], None]:
    """Returns a function to call with each batch. It records the first one if the job keeps a hot standby."""
    is_due = present.launch.standby == "hot" and present.launch.checkpoint_dir is not None

    def record(*batch: Any) -> None:
        nonlocal is_due
        if is_due and present.launch.checkpoint_dir is not None:
            is_due = False
            try:
                write_spec(present.launch.checkpoint_dir, batch)
            except (OSError, UnknownBatchSpec) as error:
                present.reporter.show_message(f"cannot record the shape of the batches for a hot standby: {error}")

    return record


def is_recorded(directory: Path) -> bool:
    """Whether a worker of this job has recorded its batches."""
    return (directory / layout.BATCH).exists()


def write_spec(directory: Path, batch: Any) -> None:
    """Describes `batch` in the checkpoint directory. Raises UnknownBatchSpec or OSError; NewerFormat if a later
    version's description is there."""
    path, content = directory / layout.BATCH, (json.dumps({KEY: FORMAT, **_describe(batch)}) + "\n").encode()
    before = durable.read_file(path, MAX_BYTES) if path.exists() else None
    if before is not None:
        refuse_newer(before, FORMAT, layout.BATCH)
    if before != content:
        durable.write_file(path, content)


def zero_batch(directory: Path, strategy: tf.distribute.Strategy) -> Any:
    """A batch of zeros like the one that was recorded. Raises UnknownBatchSpec."""
    try:
        spec = json.loads(durable.read_file(directory / layout.BATCH, MAX_BYTES))
        check_format(spec if isinstance(spec, dict) else {}, FORMAT, layout.BATCH)
    except FileNotFoundError as error:
        raise UnknownBatchSpec("no worker of this job has trained yet") from error
    except (OSError, ValueError) as error:
        raise UnknownBatchSpec(f"cannot read {directory / layout.BATCH}: {error}") from error
    try:
        return _make_zeros(spec, strategy)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        raise UnknownBatchSpec(
            f"{directory / layout.BATCH} is not a batch description of this version: {error!r}"
        ) from error


def _describe(part: Any) -> dict[str, Any]:
    if isinstance(part, tf.Tensor):
        # TensorFlow traces a function again for inputs on other devices
        return {"dtype": part.dtype.name, "shape": part.shape.as_list(), "device": part.device}
    if isinstance(part, tf.distribute.DistributedValues):
        return {"replicas": [_describe(value) for value in part.values]}
    if type(part) in (tuple, list):
        return {type(part).__name__: [_describe(item) for item in part]}
    if type(part) is dict and all(isinstance(key, str) for key in part):
        return {"dict": [[key, _describe(value)] for key, value in part.items()]}
    raise UnknownBatchSpec(
        f"they contain a {type(part).__name__}; only dense tensors in tuples, lists and dicts are supported"
    )


def _make_zeros(spec: Any, strategy: tf.distribute.Strategy) -> Any:
    if "dtype" in spec:
        with tf.device(spec["device"]):
            return tf.zeros(spec["shape"], tf.as_dtype(spec["dtype"]))
    if "replicas" in spec:
        parts = spec["replicas"]
        if len(parts) != strategy.num_replicas_in_sync:
            raise UnknownBatchSpec(
                f"it was recorded with {counted(len(parts), 'replica')}, here are {strategy.num_replicas_in_sync}"
            )
        zeros = [_make_zeros(part, strategy) for part in parts]
        return strategy.experimental_distribute_values_from_function(
            lambda context: zeros[context.replica_id_in_sync_group]
        )
    if "dict" in spec:
        return {str(key): _make_zeros(part, strategy) for key, part in spec["dict"]}
    if "list" in spec:
        return [_make_zeros(part, strategy) for part in spec["list"]]
    return tuple(_make_zeros(part, strategy) for part in spec["tuple"])
