"""The epochs of a training by `fit`: one call of `model.fit` for what is left of each, and what belongs to its end."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from worker.data.resume_dataset import explain_uncuttable
from worker.internals import keras_internals
from worker.keras.building import build_symbolically
from worker.keras.data.fit_data import FitData
from worker.keras.epoch_callbacks import EpochCallbacks, metrics_of
from worker.keras.run import FitRun
from worker.keras.several_workers import (
    agree_to_stop,
    require_metrics_in_scope,
    require_same_data,
    require_same_order,
)
from worker.keras.state import FitState
from worker.keras.validation import Validation


@dataclass(frozen=True, slots=True)
class FitLoop:
    """`listed`: Keras' list of the callbacks; `options`: what `model.fit` gets besides."""

    model: Any
    data: FitData
    validation: Validation
    listed: Any
    run: FitRun
    state: FitState
    options: Mapping[str, Any]

    def train(self, epochs: int) -> None:
        """Trains what is left of the epochs, with the callbacks' beginning and end around it."""
        model, data, run, state, listed = self.model, self.data, self.run, self.state, self.listed
        state.prepare_callbacks(listed.callbacks)
        run.begin_callbacks(listed)
        run.report_lost_state(state.begin_training(listed.callbacks))
        data.begin_training(resumed=state.is_restored)
        if run.gang is not None:
            require_same_data(run.gang, data)
        stopped = state.stopped
        while run.position.epoch < epochs and not stopped:
            if data.has_no_batch_left(run.position):
                self._end_epoch()
            else:
                self._train_epoch()
            stopped = model.stop_training
        if model.optimizer is not None:
            model.optimizer.finalize_variable_values(model.trainable_variables)
        listed.on_train_end(state.last_logs)

    def _train_epoch(self) -> None:
        """Calls `model.fit` for what is left of the epoch."""
        model, data, run = self.model, self.data, self.run
        callbacks = EpochCallbacks(model, self.listed.callbacks, run, self.state, data, self.validation)
        start = callbacks.start
        if start.batch == 0:
            data.begin_epoch()
        batches = callbacks.batches = data.open(start, model, callbacks.passes)
        self._build(batches.spec, metrics=start.batch > 0)
        if run.gang is not None:
            require_same_order(run.gang, data, start, callbacks.passes)
            require_metrics_in_scope(model, model.distribute_strategy)
        with _keeping_raw_weights(model.optimizer), keras_internals.without_symbolic_build(model), _explained_errors():
            model.fit(
                batches, initial_epoch=start.epoch, epochs=start.epoch + 1, callbacks=callbacks, verbose=0,
                shuffle=False, **self.options,
            )  # fmt: skip
        if callbacks.steps == 0 and start.batch == 0:
            raise ValueError(f"cannot train: the dataset of epoch {start.epoch} has no batches")

    def _end_epoch(self) -> None:
        """Does what belongs to the end of an epoch that has no batch left: its metrics, validation and callbacks."""
        model, data, run, options = self.model, self.data, self.run, self.options
        epoch = run.position.epoch
        self._build(data.element_spec(), metrics=True)
        run.report_lost_state(self.state.fill_metrics(), "metrics")
        logs = metrics_of(model)
        if options.get("validation_data") is not None and _validates(epoch, options.get("validation_freq", 1)):
            inputs, labels, weights = tf.keras.utils.unpack_x_y_sample_weight(options["validation_data"])
            self.validation.begin(epoch)
            with run.evaluating(), keras_internals.without_symbolic_build(model):
                results = model.evaluate(
                    inputs, labels, sample_weight=weights, verbose=0, return_dict=True,
                    steps=options.get("validation_steps"), batch_size=options.get("validation_batch_size"),
                )  # fmt: skip
            self.validation.opened()
            self.validation.end()
            logs |= {f"val_{name}": value for name, value in results.items()}
        self.listed.on_epoch_end(epoch, logs)
        if run.gang is not None:
            agree_to_stop(run.gang, model)
        self.state.last_logs = logs
        run.move_to(data.next_epoch(run.position, run.count_examples))

    def _build(self, spec: Any, metrics: bool) -> None:
        """Creates what Keras would create at the first step, or before it under a strategy, from the spec of a batch.

        With `metrics` also without a strategy, so that their saved values can be restored; but not for a model without
        `call`, which has a train step of its own: Keras can't build its loss, and trains without.
        """
        model = self.model
        has_strategy = keras_internals.strategy_of(model) is not None
        needed = has_strategy or (metrics and keras_internals.can_be_called(model))
        if needed and not keras_internals.has_built_metrics(model):
            with model.distribute_strategy.scope():
                build_symbolically(model, spec)


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


def _validates(epoch: int, frequency: int | Iterable[int]) -> bool:
    return (epoch + 1) % frequency == 0 if isinstance(frequency, int) else epoch + 1 in frequency
