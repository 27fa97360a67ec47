"""Keras' `model.fit` as a job: resumes at the exact batch, with the history, metrics and callbacks as they were.

`fit` calls `model.fit` for one epoch at a time, with the same callbacks: they see one training from its beginning to
its end. A step counts as done when the next one begins, or once the end of the epoch is complete (validation and
callbacks included). So no checkpoint separates an epoch's last batch from its validation and its callbacks.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker.data import collectives
from worker.data.batches import as_batch_source
from worker.data.examples import Examples
from worker.data.resume_dataset import explain_uncuttable
from worker.keras.fit_data import (
    DISTRIBUTED_REFUSED,
    EndOfData,
    ExampleCounter,
    count_batches,
    has_no_batch_left,
    position_after,
    rest_of_epoch,
)
from worker.keras.run import FitRun
from worker.keras.state import FitState
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.state import reachability
from worker.state.state_file import Position


def fit(
    model: Any,
    data: Any,
    *,
    epochs: int,
    callbacks: Sequence[Any] | None = None,
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
    """Trains a built and compiled model as `model.fit` does and returns its History, however often it is interrupted.

    `data`: a `worker.Examples`, a tf.data.Dataset of one epoch, or a function from the epoch to its dataset, of
    (inputs, labels) pairs in global batches. `directory`, `interval`, `generators`, `leave_out`, `strict`, `on_nan`,
    `summaries` and `summary_every` as for `worker.Run`.
    `options`: `validation_data`, `verbose` and whatever else `model.fit` takes besides its data and epochs.
    The state of a callback is what its attributes hold: plain values, containers, arrays, variables, generators and
    objects of the script's classes. Attributes that changed during training are restored.
    Raises ValueError for arguments with which training can't be resumed exactly.
    """
    _check(model, data, options)
    callbacks = callbacks or ()
    exempt = tuple(leave_out)
    state = FitState(model, exempt)
    tracked = tf.train.Checkpoint(model=model, optimizer=model.optimizer, fit=state)
    per_epoch = data.per_epoch if isinstance(data, Examples) else None
    total_steps = per_epoch * epochs if per_epoch is not None else None
    counter = None if isinstance(data, Examples) else ExampleCounter(model, strategy)
    run = FitRun(tracked, strategy=strategy, total_steps=total_steps, directory=directory, interval=interval,
                  generators=generators, leave_out=exempt, strict=strict, on_nan=on_nan,
                  summaries=summaries, summary_every=summary_every)  # fmt: skip
    run.attach(state, counter, _roots(model, data, callbacks))
    with run, contextlib.nullcontext() if counter is None else counter.counting(model):
        verbose = options.pop("verbose", "auto")
        listed = tf.keras.callbacks.CallbackList(
            callbacks, add_history=True, add_progbar=verbose != 0, model=model, epochs=epochs, steps=per_epoch,
            verbose=1 if verbose == "auto" else verbose,
        )  # fmt: skip
        listed.on_train_begin()
        run.report_lost_state(state.begin_training(listed.callbacks))
        stopped = state.stopped
        while run.position.epoch < epochs and not stopped:
            if has_no_batch_left(data, run.position):
                _end_epoch(model, data, listed, run, state, options)
            else:
                _train_epoch(model, data, _EpochCallbacks(model, listed.callbacks, run, state, data), options)
            stopped = model.stop_training
        model.optimizer.finalize_variable_values(model.trainable_variables)
        listed.on_train_end(state.last_logs)
    return model.history


def _check(model: Any, data: Any, options: Mapping[str, Any]) -> None:
    unsupported = {"initial_epoch", "steps_per_epoch", "x", "y", "batch_size", "shuffle", "validation_split"} & set(
        options
    )
    if unsupported:
        raise ValueError(
            f"cannot fit with {', '.join(sorted(unsupported))}: stepkeeper keeps the position in the data itself; give "
            f"`data` as worker.Examples or as a dataset of one epoch"
        )
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise ValueError("cannot fit a model that is not compiled; call model.compile(optimizer, loss) first")
    as_batch_source(data)  # raises for data that can't be resumed
    if isinstance(data, tf.distribute.DistributedDataset):
        raise ValueError(DISTRIBUTED_REFUSED)


def _roots(model: Any, data: Any, callbacks: Sequence[Any]) -> list[reachability.Root]:
    """Everything that a training by `fit` can reach."""
    given = data.load if isinstance(data, Examples) else data
    roots = [("model", model), ("optimizer", model.optimizer), ("loss", model.loss), ("data", given)]
    for each in tf.nest.flatten(list(callbacks)):
        name = type(each).__name__
        attributes = vars(each) if hasattr(each, "__dict__") else {}
        roots += [(f"{name}.{attribute}", value) for attribute, value in attributes.items() if value is not model]
        roots += [(name, function) for function in reachability.script_methods_of(each)]
    return roots


def _train_epoch(model: Any, data: Any, callbacks: "_EpochCallbacks", options: Mapping[str, Any]) -> None:
    """Calls `model.fit` for what is left of the epoch."""
    epoch = callbacks.start.epoch
    workers = collectives.worker_count(model.distribute_strategy)
    dataset = rest_of_epoch(data, callbacks.start, workers, callbacks.passes)
    if callbacks.start.batch > 0:
        _build_metrics(model, dataset)
    callbacks.batches = count_batches(dataset)
    if callbacks.batches is None and workers == 1:
        callbacks.end_of_data = EndOfData(dataset)
        dataset = callbacks.end_of_data.dataset
    elif callbacks.batches is None and model.steps_per_execution > 1:
        raise ValueError(
            "cannot fit with steps_per_execution above 1 on several workers: the number of batches of an epoch is not "
            "known; use 1, worker.Examples, or tf.data.experimental.assert_cardinality on the dataset"
        )
    with _keeping_raw_weights(model.optimizer), _explained_errors():
        model.fit(
            dataset, initial_epoch=epoch, epochs=epoch + 1, callbacks=callbacks, verbose=0, shuffle=False, **options
        )
    if callbacks.steps == 0 and callbacks.start.batch == 0:
        raise ValueError(f"cannot train: the dataset of epoch {epoch} has no batches")


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


def _build_metrics(model: Any, dataset: Any) -> None:
    """Creates the metrics that Keras would create at the first step, so that their saved values can be restored."""
    metrics = getattr(model, "_compile_metrics", None)
    if metrics is not None and not metrics.built:
        model._symbolic_build(data_batch=dataset.element_spec)


def _end_epoch(
    model: Any, data: Examples, listed: Any, run: FitRun, state: FitState, options: Mapping[str, Any]
) -> None:
    """Does what belongs to the end of an epoch that has no batch left: its metrics, validation and callbacks."""
    epoch = run.position.epoch
    _build_metrics(model, data.open(run.position))
    state.fill_metrics()
    logs = _metrics_of(model)
    if options.get("validation_data") is not None and _validates(epoch, options.get("validation_freq", 1)):
        inputs, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(options["validation_data"])
        with run.evaluating():
            results = model.evaluate(
                inputs, labels, sample_weight=weights, verbose=0, return_dict=True,
                steps=options.get("validation_steps"), batch_size=options.get("validation_batch_size"),
            )  # fmt: skip
        logs |= {f"val_{name}": value for name, value in results.items()}
    listed.on_epoch_end(epoch, logs)
    state.last_logs = logs
    run.move_to(Position(epoch + 1))


def _metrics_of(model: Any) -> dict[str, Any]:
    """The model's metrics as Keras puts them into its logs."""
    values = {name: np.asarray(value) for name, value in model.get_metrics_result().items()}
    return {name: value if value.ndim else float(value) for name, value in values.items()}


def _validates(epoch: int, frequency: int | Iterable[int]) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency


class _EpochCallbacks(tf.keras.callbacks.CallbackList):  # type: ignore[misc]
    """Passes the events of one `model.fit` call on to the user's callbacks, as those of one long training."""

    def __init__(self, model: Any, callbacks: list[Any], run: FitRun, state: FitState, data: Any) -> None:
        super().__init__(callbacks, model=None)
        self.steps = 0
        """The number of steps of this call that were reported as done."""
        self.batches: int | None = None
        """The number of batches of this call; None: `end_of_data` will know."""
        self.end_of_data: EndOfData | None = None
        self.start = run.position
        self.passes = run.passes
        self._trained = model
        self._run = run
        self._state = state
        self._data = data
        self._computed = 0  # batches of this call whose step is computed
        self._logs: Mapping[str, Any] | None = None  # of computed steps that are not reported yet

    def on_train_begin(self, logs: Any = None) -> None:
        """Nothing: `fit` calls the callbacks once, before the first epoch."""

    def on_train_end(self, logs: Any = None) -> None:
        """Nothing: `fit` calls the callbacks once, after the last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Passes on the beginning of an epoch. In the middle of one, restores the metrics that Keras has just reset."""
        self._run.begin_epoch_part()
        if self.start.batch == 0:
            super().on_epoch_begin(epoch, logs)
        else:
            self._state.fill_metrics()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The step before is done. If that was the last one, which only the dataset knows, ends the epoch for Keras."""
        if self.end_of_data is not None and self.end_of_data.batches == batch:
            raise StopIteration
        if batch == 0:
            self.passes.opened()
        self._report_steps(position_after(self.start, batch, self._data))
        super().on_train_batch_begin(self.start.batch + batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step is computed; with `steps_per_execution` several are.

        Keras then gives the number of the last one, too high if fewer steps were left.
        """
        batches = self.batches if self.end_of_data is None else self.end_of_data.batches
        self._computed = batch + 1 if batches is None else min(batch + 1, batches)
        super().on_train_batch_end(self.start.batch + batch, logs)
        self._logs = dict(logs or {})

    def on_test_begin(self, logs: Any = None) -> None:
        """Reports that the validation of an epoch begins."""
        self._run.report_validation(begins=True)
        super().on_test_begin(logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reports that the validation is alive."""
        super().on_test_batch_end(batch, logs)
        self._run.report_validation(begins=False)

    def on_test_end(self, logs: Any = None) -> None:
        """Reports that the validation is over."""
        super().on_test_end(logs)
        self._run.report_validation_end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reports the last step once the whole epoch is done.

        There is no step to report if the dataset is shorter than it was when the epoch was begun.
        """
        self.passes.end()
        if self._computed == 0 and self.start.batch > 0:
            logs = _metrics_of(self._trained) | dict(logs or {})
        super().on_epoch_end(epoch, logs)
        self._state.last_logs = dict(logs or {})
        if self._logs is None:
            self._run.move_to(Position(epoch + 1))
        else:
            self._report_steps(Position(epoch + 1))

    def _report_steps(self, position: Position) -> None:
        if self._logs is not None:
            steps, self.steps = self._computed - self.steps, self._computed
            logs, self._logs = self._logs, None
            self._run.steps_done(position, logs, steps)
