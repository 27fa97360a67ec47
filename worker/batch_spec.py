"""What a job's batches look like, written down by the worker that trains, for a standby that traces ahead of time.

The standby must not open the job's data: a shuffled dataset gives another order when it is read a second time.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol import durable, layout
from supervisor.protocol.wording import counted
from worker.process.attempt import Attempt

MAX_BYTES = 1 << 20


class UnknownBatchSpec(Exception):
    """There is no description of the batches that can be used; the text says why."""


def recorder(present: Attempt) -> Callable[[Any, Any], None]:
    """To be called with each batch: writes down what the first one looks like, where a hot standby is kept."""
    waiting = present.launch.standby == "hot" and present.launch.checkpoint_dir is not None

    def remember(*batch: Any) -> None:
        nonlocal waiting
        if waiting and present.launch.checkpoint_dir is not None:
            waiting = False
            try:
                write_spec(present.launch.checkpoint_dir, batch)
            except (OSError, UnknownBatchSpec) as error:
                present.reporter.show_message(f"cannot describe the batches for a hot standby: {error}")

    return remember


def is_recorded(directory: Path) -> bool:
    """Whether a worker wrote down what they look like."""
    return (directory / layout.BATCH).exists()


def write_spec(directory: Path, batch: Any) -> None:
    """Describes `batch` in the checkpoint directory. Raises Unknown or OSError."""
    path, content = directory / layout.BATCH, (json.dumps(_describe(batch)) + "\n").encode()
    if not path.exists() or durable.read_file(path, MAX_BYTES) != content:
        durable.write_file(path, content)


def zero_batch(directory: Path, strategy: tf.distribute.Strategy) -> Any:
    """A batch of zeros as the one that was described. Raises Unknown."""
    try:
        described = json.loads(durable.read_file(directory / layout.BATCH, MAX_BYTES))
    except FileNotFoundError as error:
        raise UnknownBatchSpec("no worker of this job has trained yet") from error
    except (OSError, ValueError) as error:
        raise UnknownBatchSpec(f"cannot read {directory / layout.BATCH}: {error}") from error
    try:
        return _make_zeros(described, strategy)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError, tf.errors.OpError) as error:
        raise UnknownBatchSpec(f"{directory / layout.BATCH} is not what this version writes: {error!r}") from error


def _describe(part: Any) -> dict[str, Any]:
    if isinstance(part, tf.Tensor):
        # TensorFlow prepares a function anew for inputs on other devices
        return {"dtype": part.dtype.name, "shape": part.shape.as_list(), "device": part.device}
    if isinstance(part, tf.distribute.DistributedValues):
        return {"replicas": [_describe(each) for each in part.values]}
    if type(part) in (tuple, list):
        return {type(part).__name__: [_describe(each) for each in part]}
    if type(part) is dict and all(isinstance(key, str) for key in part):
        return {"dict": [[key, _describe(each)] for key, each in part.items()]}
    raise UnknownBatchSpec(
        f"they hold a {type(part).__name__}, and only dense tensors in tuples, lists and dicts are known"
    )


def _make_zeros(described: Any, strategy: tf.distribute.Strategy) -> Any:
    if "dtype" in described:
        with tf.device(described["device"]):
            return tf.zeros(described["shape"], tf.as_dtype(described["dtype"]))
    if "replicas" in described:
        parts = described["replicas"]
        if len(parts) != strategy.num_replicas_in_sync:
            raise UnknownBatchSpec(f"it was described with {counted(len(parts), 'replica')}")
        made = [_make_zeros(each, strategy) for each in parts]
        return strategy.experimental_distribute_values_from_function(
            lambda context: made[context.replica_id_in_sync_group]
        )
    if "dict" in described:
        return {str(key): _make_zeros(each, strategy) for key, each in described["dict"]}
    if "list" in described:
        return [_make_zeros(each, strategy) for each in described["list"]]
    return tuple(_make_zeros(each, strategy) for each in described["tuple"])
