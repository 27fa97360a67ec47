"""Keras' `model.fit` as a job: resumes at the exact batch, with the history, metrics and callbacks as they were.

`fit` calls `model.fit` for one epoch at a time, with the same callbacks: they see one training from its beginning to
its end (`epoch_callbacks`).
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker.checks import reachability
from worker.internals import keras_internals
from worker.keras.arguments import DataArguments, make_fit_data
from worker.keras.building import build_from_data, build_with_train_step
from worker.keras.callbacks import check_callbacks
from worker.keras.data.end_of_data import ExampleCounter
from worker.keras.data.fit_data import FitData
from worker.keras.fit_loop import FitLoop
from worker.keras.run import FitRun
from worker.keras.several_workers import files_apart, prepare_model, require_same
from worker.keras.state import FitState
from worker.keras.validation import Validation
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.state.state_file import Position


def fit(
    model: Any,
    x: Any = None,
    y: Any = None,
    *,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: Any = "auto",
    callbacks: Any = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: Any = True,
    class_weight: Any = None,
    sample_weight: Any = None,
    steps_per_epoch: int | None = None,
    validation_batch_size: int | None = None,
    strategy: tf.distribute.Strategy | None = None,
    directory: str | Path | None = None,
    interval: str | None = None,
    generators: Iterable[Any] = (),
    leave_out: Iterable[Any] = (),
    strict: bool = False,
    on_nan: str | None = None,
    summaries: str | Path | None = None,
    summary_every: int = SUMMARY_EVERY,
    **options: Any,
) -> Any:
    """Trains a compiled model as `model.fit` does and returns its History, however often it is interrupted.

    The arguments up to `validation_batch_size`, and `validation_steps` and `validation_freq`, are those of `model.fit`.
    `x`: arrays (with `y`), a tf.data.Dataset, a `keras.utils.PyDataset`, a generator or a function that makes one, a
    `worker.Examples`, or a function from the epoch to its dataset. Batches are global, over all replicas.
    `directory`, `interval`, `generators`, `leave_out`, `strict`, `on_nan`, `summaries` and `summary_every` as for
    `worker.Run`; `strategy` is that of the model.
    The state of a callback is what its attributes hold: plain values, containers, arrays, variables, generators and
    objects of the script's classes. Attributes that changed during training are restored.
    Raises TypeError or ValueError for arguments with which training can't be resumed exactly.
    """
    _check(model, options)
    strategy = strategy or keras_internals.strategy_of(model)
    prepare_model(model, strategy)
    arguments = DataArguments(
        x, y, sample_weight, batch_size, shuffle, class_weight, steps_per_epoch, validation_split, validation_data
    )
    options["validation_batch_size"] = validation_batch_size or batch_size
    settings = {"strategy": strategy, "directory": directory, "interval": interval, "generators": generators,
                "leave_out": tuple(leave_out), "strict": strict, "on_nan": on_nan, "summaries": summaries,
                "summary_every": summary_every}  # fmt: skip
    return _fit(model, arguments, epochs, verbose, callbacks, options, settings)


def _fit(
    model: Any,
    arguments: DataArguments,
    epochs: int,
    verbose: Any,
    callbacks: Any,
    options: dict[str, Any],
    settings: Mapping[str, Any],
) -> Any:
    """`options`: what `model.fit` gets besides; `settings`: of the run."""
    data, validation_data = make_fit_data(arguments, epochs)
    callbacks = check_callbacks(callbacks)
    data.note_trained([model, *callbacks])
    build_from_data(model, data)
    build_with_train_step(model, data)
    state, validation = FitState(model, settings["leave_out"]), Validation(validation_data)
    options["validation_data"] = validation.data
    per_epoch = data.count_batches(Position())
    counter = ExampleCounter(model, settings["strategy"]) if data.counts_examples else None
    run = FitRun(_tracked(model, state), total_steps=_total_steps(data, epochs), **settings)
    run.attach(state, counter, data, validation, _roots(model, data, callbacks))
    gang = run.gang
    if gang is not None:
        require_same(gang, _common(model, epochs, per_epoch, callbacks, options))
    with (
        run,
        contextlib.nullcontext() if counter is None else counter.counting(model),
        files_apart(gang, callbacks),
    ):
        state.restore_data(data, validation)
        run.report_lost_state(data.lost, "the data")
        listed = _list_callbacks(callbacks, model, run, epochs, per_epoch, verbose)
        FitLoop(model, data, validation, listed, run, state, options).train(epochs)
    _limit_history(model.history, epochs, options.get("validation_freq", 1))
    return model.history


def _limit_history(history: Any, epochs: int, validation_freq: int | Collection[int]) -> None:
    """Leaves out of a History what later calls of fit have added, if training went on behind the epochs of this one."""
    own = [epoch for epoch in history.epoch if epoch < epochs]
    if len(own) == len(history.epoch):
        return
    validated = [
        epoch
        for epoch in own
        if ((epoch + 1) % validation_freq == 0 if isinstance(validation_freq, int) else epoch + 1 in validation_freq)
    ]
    for values in history.history.values():
        del values[len(own) if len(values) == len(history.epoch) else len(validated) :]
    history.epoch = own


def _common(
    model: Any, epochs: int, per_epoch: int | None, callbacks: Sequence[Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments that all workers have to give alike, by name."""
    names = ("validation_batch_size", "validation_steps", "validation_freq")
    return {
        "variables of the model": [[variable.path, list(variable.shape)] for variable in model.variables],
        "epochs": epochs,
        "number of batches in an epoch": per_epoch,
        "callbacks": [type(callback).__name__ for callback in callbacks],
        "validation_data": type(options["validation_data"]).__name__,
        **{name: options.get(name) for name in names},
    }


def _check(model: Any, options: Mapping[str, Any]) -> None:
    if "initial_epoch" in options:
        raise ValueError("cannot fit with initial_epoch: fit continues in the epoch where training stopped; remove it")
    unknown = sorted(set(options) - {"validation_steps", "validation_freq"})
    if unknown:
        raise TypeError(f"fit has no argument {', '.join(unknown)}; it takes those of model.fit and of worker.Run")
    if any(kind.__module__.partition(".")[0] == "tf_keras" for kind in type(model).__mro__):
        raise TypeError(
            "cannot fit a model of Keras 2 (tf_keras): worker.keras.fit trains models of Keras 3; write a loop over "
            "run.batches with worker.Run(tf.train.Checkpoint(model=model, optimizer=optimizer)), which saves it"
        )
    if not getattr(model, "compiled", False):
        raise ValueError("cannot fit a model that is not compiled; call model.compile(optimizer, loss) first")


def _tracked(model: Any, state: FitState) -> tf.train.Checkpoint:
    """What a checkpoint holds."""
    optimizer = {} if model.optimizer is None else {"optimizer": model.optimizer}
    return tf.train.Checkpoint(model=model, fit=state, **optimizer)


def _list_callbacks(
    callbacks: Sequence[Any], model: Any, run: FitRun, epochs: int, per_epoch: int | None, verbose: Any
) -> Any:
    """Keras' list of the callbacks, with its history, and its progress bar, which the chief alone shows."""
    is_shown = run.gang is None or run.gang.is_chief
    return tf.keras.callbacks.CallbackList(
        callbacks, add_history=True, add_progbar=verbose != 0, model=model, epochs=epochs, steps=per_epoch,
        verbose=0 if not is_shown else 1 if verbose == "auto" else verbose,
    )  # fmt: skip


def _total_steps(data: FitData, epochs: int) -> int | None:
    counts = [data.count_batches(Position(epoch)) for epoch in range(epochs)]
    return None if None in counts else sum(count for count in counts if count is not None)


def _roots(model: Any, data: FitData, callbacks: Sequence[Any]) -> list[reachability.Root]:
    """Everything that a training by `fit` can reach."""
    roots = [("model", model), ("optimizer", model.optimizer), ("loss", model.loss)]
    roots += [("data", root) for root in data.roots()]
    for callback in callbacks:
        name = type(callback).__name__
        attributes = vars(callback) if hasattr(callback, "__dict__") else {}
        roots += [(f"{name}.{attribute}", value) for attribute, value in attributes.items() if value is not model]
        roots += [(name, function) for function in reachability.script_methods_of(callback)]
    return roots
