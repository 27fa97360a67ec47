"""Keras' `model.fit` as a job: resumes at the exact batch, with the history, metrics and callbacks as they were.

`fit` calls `model.fit` for one epoch at a time, with the same callbacks: they see one training from its beginning to
its end (`epoch_callbacks`).
"""

import contextlib
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from worker.checks import reachability
from worker.data.resume_dataset import explain_uncuttable
from worker.internals import keras_internals
from worker.keras.arguments import DataArguments, make_fit_data
from worker.keras.building import build_from_data, build_symbolically, build_with_train_step
from worker.keras.callbacks import check_callbacks
from worker.keras.data.end_of_data import ExampleCounter
from worker.keras.data.fit_data import FitData
from worker.keras.epoch_callbacks import EpochCallbacks, metrics_of
from worker.keras.run import FitRun
from worker.keras.several_workers import (
    agree_to_stop,
    files_apart,
    prepare_model,
    require_metrics_in_scope,
    require_same,
    require_same_data,
    require_same_order,
)
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
    data, validation_data = make_fit_data(arguments, epochs)
    listed_callbacks = check_callbacks(callbacks)
    data.note_trained([model, *listed_callbacks])
    build_from_data(model, data)
    build_with_train_step(model, data)
    exempt = tuple(leave_out)
    state = FitState(model, exempt)
    validation = Validation(validation_data)
    options |= {"validation_data": validation.data, "validation_batch_size": validation_batch_size or batch_size}
    per_epoch = data.count_batches(Position())
    counter = ExampleCounter(model, strategy) if data.counts_examples else None
    run = FitRun(_tracked(model, state), strategy=strategy, total_steps=_total_steps(data, epochs), directory=directory,
                  interval=interval, generators=generators, leave_out=exempt, strict=strict, on_nan=on_nan,
                  summaries=summaries, summary_every=summary_every)  # fmt: skip
    run.attach(state, counter, data, validation, _roots(model, data, listed_callbacks))
    gang = run.gang
    if gang is not None:
        require_same(gang, _common(model, epochs, per_epoch, listed_callbacks, options))
    with (
        run,
        contextlib.nullcontext() if counter is None else counter.counting(model),
        files_apart(gang, listed_callbacks),
    ):
        state.restore_data(data, validation)
        run.report_lost_state(data.lost, "the data")
        listed = _list_callbacks(listed_callbacks, model, run, epochs, per_epoch, verbose)
        _train(_Training(model, data, validation, listed, run, state, options), epochs)
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


@dataclass(frozen=True, slots=True)
class _Training:
    """One `fit`. `listed`: Keras' list of the callbacks; `options`: what `model.fit` gets besides."""

    model: Any
    data: FitData
    validation: Validation
    listed: Any
    run: FitRun
    state: FitState
    options: Mapping[str, Any]


def _train(training: _Training, epochs: int) -> None:
    """Trains what is left of the epochs, with the callbacks' beginning and end around it."""
    model, data, run, state, listed = training.model, training.data, training.run, training.state, training.listed
    state.prepare_callbacks(listed.callbacks)
    run.begin_callbacks(listed)
    run.report_lost_state(state.begin_training(listed.callbacks))
    data.begin_training(resumed=state.is_restored)
    if run.gang is not None:
        require_same_data(run.gang, data)
    stopped = state.stopped
    while run.position.epoch < epochs and not stopped:
        if data.has_no_batch_left(run.position):
            _end_epoch(training)
        else:
            _train_epoch(training)
        stopped = model.stop_training
    if model.optimizer is not None:
        model.optimizer.finalize_variable_values(model.trainable_variables)
    listed.on_train_end(state.last_logs)


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


def _train_epoch(training: _Training) -> None:
    """Calls `model.fit` for what is left of the epoch."""
    model, data = training.model, training.data
    callbacks = EpochCallbacks(
        model, training.listed.callbacks, training.run, training.state, data, training.validation
    )
    gang = training.run.gang
    start = callbacks.start
    if start.batch == 0:
        data.begin_epoch()
    batches = callbacks.batches = data.open(start, model, callbacks.passes)
    _build(model, batches.spec, metrics=start.batch > 0)
    if gang is not None:
        require_same_order(gang, data, start, callbacks.passes)
        require_metrics_in_scope(model, model.distribute_strategy)
    with _keeping_raw_weights(model.optimizer), keras_internals.without_symbolic_build(model), _explained_errors():
        model.fit(
            batches, initial_epoch=start.epoch, epochs=start.epoch + 1, callbacks=callbacks, verbose=0, shuffle=False,
            **training.options,
        )  # fmt: skip
    if callbacks.steps == 0 and start.batch == 0:
        raise ValueError(f"cannot train: the dataset of epoch {start.epoch} has no batches")


@contextlib.contextmanager
def _keeping_raw_weights(optimizer: Any) -> Iterator[None]:
    """Prevents Keras from replacing the weights by their moving averages (`use_ema`) at the end of each `model.fit`.

    Here one call is one epoch, and training continues with the weights themselves.
    """
    object.__setattr__(optimizer, "finalize_variable_values", lambda variables: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "finalize_variable_values")


@contextlib.contextmanager
def _explained_errors() -> Iterator[None]:
    """Replaces a dataset error that comes out of a compiled step by its plain cause, and silences Keras' warning that a
    dataset of unknown length has ended."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            yield
    except tf.errors.OpError as error:
        if (plain := explain_uncuttable(error)) is not None:
            raise plain from error
        raise


def _build(model: Any, spec: Any, metrics: bool) -> None:
    """Creates what Keras would create at the first step, or before it under a strategy, from the spec of a batch.

    With `metrics` also without a strategy, so that their saved values can be restored; but not for a model without
    `call`, which has a train step of its own: Keras can't build its loss, and trains without.
    """
    has_strategy = keras_internals.strategy_of(model) is not None
    needed = has_strategy or (metrics and keras_internals.can_be_called(model))
    if needed and not keras_internals.has_built_metrics(model):
        with model.distribute_strategy.scope():
            build_symbolically(model, spec)


def _end_epoch(training: _Training) -> None:
    """Does what belongs to the end of an epoch that has no batch left: its metrics, validation and callbacks."""
    model, data, run, options = training.model, training.data, training.run, training.options
    epoch = run.position.epoch
    _build(model, data.element_spec(), metrics=True)
    run.report_lost_state(training.state.fill_metrics(), "metrics")
    logs = metrics_of(model)
    if options.get("validation_data") is not None and _validates(epoch, options.get("validation_freq", 1)):
        inputs, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(options["validation_data"])
        training.validation.begin(epoch)
        with run.evaluating(), keras_internals.without_symbolic_build(model):
            results = model.evaluate(
                inputs, labels, sample_weight=weights, verbose=0, return_dict=True,
                steps=options.get("validation_steps"), batch_size=options.get("validation_batch_size"),
            )  # fmt: skip
        training.validation.opened()
        training.validation.end()
        logs |= {f"val_{name}": value for name, value in results.items()}
    training.listed.on_epoch_end(epoch, logs)
    if run.gang is not None:
        agree_to_stop(run.gang, model)
    training.state.last_logs = logs
    run.move_to(data.next_epoch(run.position, run.count_examples))


def _validates(epoch: int, frequency: int | Iterable[int]) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency
