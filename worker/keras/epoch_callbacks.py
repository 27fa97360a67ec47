"""Passes the events of one `model.fit` call on to the user's callbacks, and counts its steps.

A step counts as done when the next one begins, or once the end of the epoch is complete (validation and callbacks
included). So no checkpoint separates an epoch's last batch from its validation and its callbacks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from worker.keras.data.fit_data import EpochBatches, FitData
from worker.keras.run import FitRun
from worker.keras.several_workers import agree_to_stop, may_stop_within_epochs
from worker.keras.state import FitState
from worker.keras.validation import Validation
from worker.state.state_file import Position


class EpochCallbacks(tf.keras.callbacks.CallbackList):  # type: ignore[misc]
    """Passes the events of one `model.fit` call on to the user's callbacks, as those of one long training."""

    def __init__(
        self,
        model: Any,
        callbacks: list[Any],
        run: FitRun,
        state: FitState,
        data: FitData,
        validation: Validation,
    ) -> None:
        super().__init__(callbacks, model=None)
        self.steps = 0
        """The number of steps of this call that were reported as done."""
        self.batches: EpochBatches | None = None
        """The batches of this call."""
        self.start = run.position
        self.passes = run.passes
        self._trained = model
        self._run = run
        self._gang = run.gang
        self._agrees_on_steps = run.gang is not None and may_stop_within_epochs(callbacks)
        self._state = state
        self._data = data
        self._validation = validation
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
            self._run.report_lost_state(self._state.fill_metrics(), "metrics")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The step before is done. If that was the last one, which only the dataset knows, ends the epoch for Keras."""
        if self._known_batches() == batch:
            raise StopIteration
        self._report_steps(self._data.position_after(self.start, batch))
        super().on_train_batch_begin(self.start.batch + batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step is computed; with `steps_per_execution` several are.

        Keras then gives the number of the last one, too high if fewer steps were left.
        """
        batches = self._known_batches()
        self._computed = batch + 1 if batches is None else min(batch + 1, batches)
        super().on_train_batch_end(self.start.batch + batch, logs)
        if self._gang is not None and self._agrees_on_steps:
            agree_to_stop(self._gang, self._trained)
        self._logs = dict(logs or {})

    def on_test_begin(self, logs: Any = None) -> None:
        """Reports that the validation of an epoch begins."""
        self._data.end_epoch()
        self._validation.begin(self.start.epoch)
        self._run.report_validation(begins=True)
        super().on_test_begin(logs)

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The validation has its iterator."""
        if batch == 0:
            self._validation.opened()
        super().on_test_batch_begin(batch, logs)

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
        self._check_length()
        self._data.end_epoch()
        self._validation.end()
        self.passes.end()
        if self._computed == 0 and self.start.batch > 0:
            logs = metrics_of(self._trained) | dict(logs or {})
        super().on_epoch_end(epoch, logs)
        if self._gang is not None:
            agree_to_stop(self._gang, self._trained)
        self._state.last_logs = dict(logs or {})
        end = self._data.position_after(self.start, self._computed)
        position = self._data.next_epoch(end, self._run.count_examples)
        if self._logs is None:
            self._run.move_to(position)
        else:
            self._report_steps(position)

    def _known_batches(self) -> int | None:
        return None if self.batches is None else self.batches.known_batches

    def _check_length(self) -> None:
        """With `steps_per_epoch`, data of unknown length may end before the epoch does."""
        expected = None if self.batches is None else self.batches.batches
        if expected is not None and self._computed < expected and not self._trained.stop_training:
            raise ValueError(
                f"cannot train: the data ended after {self._computed} of the {expected} batches that were left of "
                f"epoch {self.start.epoch}; use a smaller steps_per_epoch, or .repeat() the dataset"
            )

    def _report_steps(self, position: Position) -> None:
        if self._logs is not None:
            steps, self.steps = self._computed - self.steps, self._computed
            logs, self._logs = self._logs, None
            self._run.steps_done(position, logs, steps)


def metrics_of(model: Any) -> dict[str, Any]:
    """The model's metrics as Keras puts them into its logs."""
    values = {name: np.asarray(value) for name, value in model.get_metrics_result().items()}
    return {name: value if value.ndim else float(value) for name, value in values.items()}
