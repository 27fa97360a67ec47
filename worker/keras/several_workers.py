"""A `fit` on several workers: refuses what can't hold there, has them agree, and keeps their files apart.

Each worker calls the same callbacks with the same logs, averaged over all replicas, and all take the same steps: a
worker that took another one would wait for the others without end.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker.checks.dataset_checks import find_unseeded
from worker.data import collectives
from worker.data.collectives import Gang
from worker.internals import keras_internals
from worker.internals.dataset_internals import original_dataset
from worker.keras.data.fit_data import FitData
from worker.process.temporary_folder import temporary_folder
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position

_CALLBACKS = tf.keras.callbacks
_IN_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def prepare_model(model: Any, strategy: tf.distribute.Strategy | None) -> None:
    """Raises ValueError for a model that several workers can't train. Mends what Keras does wrong for them."""
    workers = collectives.worker_count(strategy)
    if strategy is None and collectives.processes_of_cluster() > 1:
        raise ValueError(
            f"cannot fit model {model.name!r} on several workers: it was created outside strategy.scope(), so each "
            f"would train it alone; build and compile it inside the scope of worker.strategy()"
        )
    if workers == 1 or strategy is None:
        return
    keras_internals.average_logs_over_workers()
    if model.optimizer is not None:
        _require_scope(model, model.optimizer.variables, "its optimizer", strategy)
    if model.jit_compile:
        raise ValueError(
            f"cannot fit on {workers} workers with jit_compile=True: on CPUs, XLA has none of the operations by which "
            f"they exchange gradients, and on GPUs nobody has tried; compile the model with jit_compile=False"
        )
    if model.steps_per_execution > 1:
        raise ValueError(
            f"cannot fit on {workers} workers with steps_per_execution={model.steps_per_execution}: TensorFlow fails "
            f"when they exchange gradients inside of Keras' loop of steps; compile the model with steps_per_execution=1"
        )


def require_metrics_in_scope(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError if a metric counts for its worker alone, so that each worker would log another value."""
    for metric in model.metrics:
        _require_scope(model, metric.variables, "a metric", strategy)


def _require_scope(model: Any, variables: Sequence[Any], what: str, strategy: tf.distribute.Strategy) -> None:
    for variable in variables:
        if not strategy.extended.variable_created_in_scope(variable.value):
            raise ValueError(
                f"cannot fit model {model.name!r} on {collectives.worker_count(strategy)} workers: {variable.path} of "
                f"{what} was created outside strategy.scope(), so each worker would have its own; create {what} and "
                f"call model.compile inside the scope"
            )


def require_same(gang: Gang, values: Mapping[str, Any]) -> None:
    """Raises ValueError unless all workers pass the same values, by name. All call it at the same place."""
    mine = [zlib.crc32(json.dumps(value, sort_keys=True, default=_as_text).encode()) for value in values.values()]
    theirs = gang.from_chief(mine)
    differing = gang.sum([int(one != other) for one, other in zip(mine, theirs, strict=True)])
    names = [name for name, count in zip(values, differing, strict=True) if count]
    if names:
        raise ValueError(
            f"cannot fit on {gang.size} workers: not all of them have the same {', '.join(names)}, and each trains on "
            f"its part of the same batches; run the same script with the same arguments in all, and seed what it draws "
            f"(deterministic = true, or keras.utils.set_random_seed)"
        )


def require_same_data(gang: Gang, data: FitData) -> None:
    """Raises ValueError unless all workers are given the same batches. Call it before any is read."""
    require_same(gang, {"data": data.fingerprint()})


def require_same_order(gang: Gang, data: FitData, position: Position, passes: PassLog) -> None:
    """Raises ValueError unless all workers read the epoch in the same order from `position` on.

    Call it once the data are open.
    """
    unseeded = [] if passes.data is None else find_unseeded(original_dataset(passes.data))
    if problems := [*data.find_problems(), *unseeded]:
        names = "; ".join(problem.name for problem in problems)
        raise ValueError(
            f"cannot fit on {gang.size} workers: they train on parts of the same batches, and each might read others, "
            f"because of {names}; {problems[0].remedy}"
        )
    saved, arrays = data.save(position)
    order = {name: saved[name] for name in ("seed", "attributes") if name in saved}  # the rest is read meanwhile
    log = {name: value for name, value in passes.to_json().items() if name != "rng"}  # its seeds are in `parts`
    require_same(gang, {"order of the data": [log, order, sorted(arrays.items())]})


def _as_text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{zlib.crc32(np.ascontiguousarray(value).tobytes())}"
    return repr(value)


def may_stop_within_epochs(callbacks: Sequence[Any]) -> bool:
    """Whether a callback of the script's own is called at batches: it may end training there, in one worker alone."""
    for callback in callbacks:
        kind = type(callback)
        of_keras = kind.__module__.partition(".")[0] == "keras" and kind is not _CALLBACKS.LambdaCallback
        if not of_keras and any(
            name in vars(callback) or getattr(kind, name) is not getattr(_CALLBACKS.Callback, name)
            for name in _IN_BATCHES
        ):
            return True
    return False


def agree_to_stop(gang: Gang, model: Any) -> None:
    """Ends training in all workers if a callback has ended it in one. All call it after the same step."""
    model.stop_training = gang.sum([int(bool(model.stop_training))])[0] > 0


@contextmanager
def files_apart(gang: Gang | None, callbacks: Sequence[Any]) -> Iterator[None]:
    """Meanwhile, Keras' callbacks write their files only for the chief.

    Those of the other workers write too, as all have to read the variables at the same time, but into a folder that is
    deleted at the end. Call it before Keras tells the callbacks of their model.
    """
    if gang is None or gang.is_chief:
        yield
        return
    with temporary_folder() as folder:
        for number, callback in enumerate(callbacks):
            own = folder / str(number)
            own.mkdir()
            if isinstance(callback, _CALLBACKS.ModelCheckpoint):
                callback.filepath = str(own / Path(callback.filepath).name)
            elif isinstance(callback, _CALLBACKS.CSVLogger):
                callback.filename = str(own / Path(callback.filename).name)
            elif isinstance(callback, _CALLBACKS.TensorBoard):
                callback.log_dir = str(own)
        yield
