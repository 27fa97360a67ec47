"""Keras' `model.fit` as a job: goes on at the exact batch, with history, metrics and callbacks as they were.

`fit` calls `model.fit` for one epoch at a time, with the same callbacks: they see one training from its beginning to
its end. A step counts as done when the next one begins, or the epoch's end is over (validation and callbacks included),
so that no checkpoint lies between an epoch's last batch and what belongs to it.
"""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker.data import collectives
from worker.data.batches import Examples, as_batch_source, check_shared_by_rows
from worker.data.resume_dataset import explain_uncuttable
from worker.keras.end_of_data import EndOfData
from worker.keras.run import ExampleCounter, FitRun
from worker.keras.state import FitState
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.state import missing_variables
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
    """Trains a built and compiled model as `model.fit` does and gives its History, however often it was interrupted.

    `data`: a `worker.Examples`, a tf.data.Dataset of one epoch, or a function from the epoch to its dataset, of
    (inputs, labels) pairs in global batches. `directory`, `interval`, `generators`, `leave_out`, `strict`, `on_nan`,
    `summaries` and `summary_every` as for `worker.Run`.
    `options`: `validation_data`, `verbose` and what else `model.fit` takes besides its data and epochs.
    What a callback's attributes hold (plain values, containers, arrays, variables, generators, objects of the script's
    own) is its state, and what of it changed while it trained comes back.
    Raises ValueError for what can't be resumed exactly.
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
            if _is_over(data, run.position):
                _end_epoch(model, data, listed, run, state, options)
            else:
                _train_epoch(model, data, _EpochCallbacks(model, listed.callbacks, run, state, data), options)
            stopped = model.stop_training
        model.optimizer.finalize_variable_values(model.trainable_variables)
        listed.on_train_end(state.last_logs)
    return model.history


def _check(model: Any, data: Any, options: Mapping[str, Any]) -> None:
    refused = {"initial_epoch", "steps_per_epoch", "x", "y", "batch_size", "shuffle", "validation_split"} & set(options)
    if refused:
        raise ValueError(
            f"cannot fit with {', '.join(sorted(refused))}: where training goes on is kept by stepkeeper; give `data` "
            f"as worker.Examples or as a dataset of one epoch"
        )
    if not getattr(model, "compiled", False) or model.optimizer is None:
        raise ValueError("cannot fit a model that is not compiled; call model.compile(optimizer, loss) first")
    as_batch_source(data)  # says what it can't be
    if isinstance(data, tf.distribute.DistributedDataset):
        raise ValueError(_DISTRIBUTED)


_DISTRIBUTED = (
    "cannot fit with a distributed dataset, which can't be resumed within an epoch; give the tf.data.Dataset itself: "
    "it is spread over the replicas here"
)


def _roots(model: Any, data: Any, callbacks: Sequence[Any]) -> list[missing_variables.Root]:
    """All that a training by `fit` reaches."""
    given = data.load if isinstance(data, Examples) else data
    roots = [("model", model), ("optimizer", model.optimizer), ("loss", model.loss), ("data", given)]
    for each in tf.nest.flatten(list(callbacks)):
        name = type(each).__name__
        held = vars(each) if hasattr(each, "__dict__") else {}
        roots += [(f"{name}.{attribute}", value) for attribute, value in held.items() if value is not model]
        roots += [(name, function) for function in missing_variables.script_methods_of(each)]
    return roots


def _train_epoch(model: Any, data: Any, inner: "_EpochCallbacks", options: Mapping[str, Any]) -> None:
    """One call of `model.fit`, for what is left of the epoch."""
    epoch = inner.begun.epoch
    workers = collectives.worker_count(model.distribute_strategy)
    dataset = _rest_of_epoch(data, inner.begun, workers)
    if inner.begun.batch > 0:
        _build_metrics(model, dataset)
    inner.batches = _batches_in(dataset)
    if inner.batches is None and workers == 1:
        inner.ending = EndOfData(dataset)
        dataset = inner.ending.dataset
    elif inner.batches is None and model.steps_per_execution > 1:
        raise ValueError(
            "cannot fit with steps_per_execution above 1 on several workers where nobody knows how many batches an "
            "epoch has; use 1, worker.Examples, or tf.data.experimental.assert_cardinality on the dataset"
        )
    with _keeping_raw_weights(model.optimizer), _explained_errors():
        model.fit(dataset, initial_epoch=epoch, epochs=epoch + 1, callbacks=inner, verbose=0, shuffle=False, **options)
    if inner.steps == 0 and inner.begun.batch == 0:
        raise ValueError(f"cannot train: the dataset of epoch {epoch} has no batches")


@contextlib.contextmanager
def _keeping_raw_weights(optimizer: Any) -> Iterator[None]:
    """Keras overwrites the weights with their moving averages (`use_ema`) at the end of each `fit`; here one call of it
    is an epoch, and training goes on with the weights."""
    object.__setattr__(optimizer, "finalize_variable_values", lambda variables: None)
    try:
        yield
    finally:
        object.__delattr__(optimizer, "finalize_variable_values")


@contextlib.contextmanager
def _explained_errors() -> Iterator[None]:
    """An error of the dataset that comes out of a compiled step, as this program means it; and no warning of Keras'
    that a dataset of unknown length came to its end."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Your input ran out of data")
            yield
    except tf.errors.OpError as error:
        if (plain := explain_uncuttable(error)) is not None:
            raise plain from error
        raise


def _build_metrics(model: Any, dataset: Any) -> None:
    """Creates what Keras would create at the first step, so that the metrics of half an epoch find their place."""
    metrics = getattr(model, "_compile_metrics", None)
    if metrics is not None and not metrics.built:
        model._symbolic_build(data_batch=dataset.element_spec)


def _is_over(data: Any, position: Position) -> bool:
    """Whether an epoch was begun with smaller batches, and what is left of it makes no whole one now."""
    return isinstance(data, Examples) and data.consumed(position) > 0 and data.is_over(position)


def _end_epoch(
    model: Any, data: Examples, listed: Any, run: FitRun, state: FitState, options: Mapping[str, Any]
) -> None:
    """What belongs to the end of an epoch that has no batch left: its figures, validation, callbacks."""
    epoch = run.position.epoch
    _build_metrics(model, data.open(run.position))
    state.fill_metrics()
    logs = _metrics_of(model)
    if options.get("validation_data") is not None and _validates(epoch, options.get("validation_freq", 1)):
        inputs, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(options["validation_data"])
        with run.evaluating():
            found = model.evaluate(
                inputs, labels, sample_weight=weights, verbose=0, return_dict=True,
                steps=options.get("validation_steps"), batch_size=options.get("validation_batch_size"),
            )  # fmt: skip
        logs |= {f"val_{name}": value for name, value in found.items()}
    listed.on_epoch_end(epoch, logs)
    state.last_logs = logs
    run.move_to(Position(epoch + 1))


def _metrics_of(model: Any) -> dict[str, Any]:
    """As Keras has them in its logs."""
    found = {name: np.asarray(value) for name, value in model.get_metrics_result().items()}
    return {name: value if value.ndim else float(value) for name, value in found.items()}


def _validates(epoch: int, frequency: int | Iterable[int]) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency


def _batches_in(dataset: Any) -> int | None:
    """How many, if the dataset knows."""
    count = int(tf.data.experimental.cardinality(dataset)) if isinstance(dataset, tf.data.Dataset) else -1
    return count if count >= 0 else None


def _rest_of_epoch(data: Any, position: Position, workers: int) -> Any:
    """A dataset that ends with the epoch.

    Without tuning in the background, which `Examples` has no use for: the end of each iterator would wait for it.
    """
    dataset = as_batch_source(data).open(position)
    if not isinstance(data, Examples):
        if not isinstance(dataset, tf.data.Dataset):
            raise ValueError(_DISTRIBUTED)
        check_shared_by_rows(dataset, workers)
        return dataset
    untuned = tf.data.Options()
    untuned.autotune.enabled = False
    left = (data.count - data.consumed(position)) // data.batch_size
    return dataset.take(left).with_options(untuned)


def _position_after(begun: Position, batches: int, data: Any) -> Position:
    """Where the data go on so many batches later in the epoch; what a dataset gave, a `Counter` knows."""
    examples = data.consumed(begun) + batches * data.batch_size if isinstance(data, Examples) else None
    return Position(begun.epoch, begun.batch + batches, examples)


class _EpochCallbacks(tf.keras.callbacks.CallbackList):  # type: ignore[misc]
    """The callbacks, in one of the calls of `model.fit` that make up a training."""

    def __init__(self, model: Any, callbacks: list[Any], run: FitRun, state: FitState, data: Any) -> None:
        super().__init__(callbacks, model=None)
        self._trained = model
        self.steps = 0
        self.batches: int | None = None
        """How many there are; None: what `ending` knows."""
        self.ending: EndOfData | None = None
        self.begun = run.position
        self._run = run
        self._state = state
        self._data = data
        self._begun_at = run.position.batch
        self._ended = 0  # batches of this call, of which the last was computed
        self._logs: Mapping[str, Any] | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Said once, before the first epoch."""

    def on_train_end(self, logs: Any = None) -> None:
        """Said once, after the last epoch."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Callbacks hear of an epoch's beginning once; Keras has just emptied the metrics."""
        self._run.begin_epoch_part()
        if self._begun_at == 0:
            super().on_epoch_begin(epoch, logs)
        else:
            self._state.fill_metrics()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The step before is done; or it was the last one, which only the dataset knows, and Keras is told so."""
        if self.ending is not None and self.ending.batches == batch:
            raise StopIteration
        self._report_steps(_position_after(self.begun, batch, self._data))
        super().on_train_batch_begin(self._begun_at + batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The step is computed; or several, with `steps_per_execution`, of which it is told the last as if the last
        few were as many as the others."""
        batches = self.batches if self.ending is None else self.ending.batches
        self._ended = batch + 1 if batches is None else min(batch + 1, batches)
        super().on_train_batch_end(self._begun_at + batch, logs)
        self._logs = dict(logs or {})

    def on_test_begin(self, logs: Any = None) -> None:
        """The validation of an epoch."""
        self._run.report_validation(begins=True)
        super().on_test_begin(logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """One batch of it."""
        super().on_test_batch_end(batch, logs)
        self._run.report_validation(begins=False)

    def on_test_end(self, logs: Any = None) -> None:
        """Over."""
        super().on_test_end(logs)
        self._run.report_validation_end()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The last step is done when all that belongs to its epoch is.

        There is none where a dataset is shorter than it was when the epoch was begun.
        """
        if self._ended == 0 and self._begun_at > 0:
            logs = _metrics_of(self._trained) | dict(logs or {})
        super().on_epoch_end(epoch, logs)
        self._state.last_logs = dict(logs or {})
        if self._logs is None:
            self._run.move_to(Position(epoch + 1))
        else:
            self._report_steps(Position(epoch + 1))

    def _report_steps(self, position: Position) -> None:
        if self._logs is not None:
            steps, self.steps = self._ended - self.steps, self._ended
            logs, self._logs = self._logs, None
            self._run.steps_done(position, logs, steps)
