"""Epochs of a given number of steps (`steps_per_epoch`): an epoch is then a part of a pass over the data.

As in Keras, an epoch continues in the data where the one before ended, and a new pass begins once the data have ended.
So data without end are one pass, and the last epoch in a pass over other data may be shorter.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from worker.checks.findings import Finding
from worker.keras.data.fit_data import EpochBatches, FitData
from worker.state.dataset_passes import PassLog
from worker.state.state_file import Position


class StepsPerEpoch(FitData):
    """Other data, in epochs of `steps` batches. Its positions count the examples of the whole pass."""

    def __init__(self, data: FitData, steps: int) -> None:
        self._data = data
        self._steps = steps
        self.counts_examples = data.counts_examples
        self._size = data.count_batches(Position())
        self._epochs: int | None = None  # of one pass; None: all
        if data.each_epoch_anew:
            self._epochs = 1
        elif self._size is not None:
            self._epochs = max(1, math.ceil(self._size / steps))
        self._open: EpochBatches | None = None
        self._open_at: tuple[int, int] | None = None  # pass and batch of the next batch that the open iterator yields

    def count_batches(self, position: Position) -> int:
        _, first = self._place(position.epoch)
        return self._steps if self._size is None else min(self._steps, self._size - first)

    def element_spec(self) -> Any:
        return self._data.element_spec()

    def open(self, position: Position, model: Any, passes: PassLog) -> EpochBatches:
        number, first = self._place(position.epoch)
        left = self.count_batches(position) - position.batch
        ends = self._size is not None and first + position.batch + left >= self._size
        if left % model.steps_per_execution != 0 and not ends:
            raise ValueError(
                f"cannot fit with {left} steps left in the epoch and steps_per_execution={model.steps_per_execution}: "
                f"Keras would train more steps than that; use a steps_per_epoch that is a multiple of it"
            )
        if self._open is None or self._open_at != (number, first + position.batch):
            self._open = self._data.open(self._inner(position), model, passes)
        passes.described = {**(passes.described or {}), "steps_per_epoch": self._steps}
        self._open_at = number, first + position.batch + left
        return self._open.of_length(left)

    def begin_training(self, resumed: bool) -> None:
        self._data.begin_training(resumed)

    def begin_epoch(self) -> None:
        self._data.begin_epoch()

    def end_epoch(self) -> None:
        self._data.end_epoch()

    def position_after(self, start: Position, batches: int) -> Position:
        examples = self._data.position_after(self._inner(start), batches).examples
        return Position(start.epoch, start.batch + batches, examples)

    def next_epoch(self, end: Position, consumed: Callable[[], int | None]) -> Position:
        if self._place(end.epoch + 1)[1] == 0:
            return Position(end.epoch + 1)
        return Position(end.epoch + 1, 0, consumed() if self.counts_examples else end.examples)

    def roots(self) -> list[Any]:
        return self._data.roots()

    def note_trained(self, objects: Iterable[Any]) -> None:
        self._data.note_trained(objects)

    def find_problems(self) -> list[Finding]:
        return self._data.find_problems()

    def fingerprint(self) -> Any:
        return self._data.fingerprint()

    def save(self, position: Position) -> Any:
        return self._data.save(self._inner(position))

    def restore(self, saved: Mapping[str, Any], arrays: Any) -> None:
        self._data.restore(saved, arrays)

    def _place(self, epoch: int) -> tuple[int, int]:
        """The pass that an epoch is in, and the batch of that pass at which it begins."""
        if self._epochs is None:
            return 0, epoch * self._steps
        return epoch // self._epochs, epoch % self._epochs * self._steps

    def _inner(self, position: Position) -> Position:
        number, first = self._place(position.epoch)
        return Position(number, first + position.batch, position.examples)
