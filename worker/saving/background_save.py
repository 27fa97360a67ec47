"""The save that is written beside training, on a thread of its own: one at a time."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic

from worker.saving.commit import SaveError
from worker.saving.save import CheckpointSave, LastCheckpoint, T


class BackgroundSave(Generic[T]):
    """The thread, and the save in flight. A save is in flight until `wait`, also if it has ended before.

    To be called on the thread that trains.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "stepkeeper-save")
        self._in_flight: tuple[CheckpointSave[T], Future[LastCheckpoint | SaveError]] | None = None

    @property
    def save(self) -> CheckpointSave[T] | None:
        """The save in flight; None if there is none."""
        return None if self._in_flight is None else self._in_flight[0]

    @property
    def has_ended(self) -> bool:
        """Whether there is a save in flight that has ended, so that `wait` returns at once."""
        return self._in_flight is not None and self._in_flight[1].done()

    @property
    def running_s(self) -> float | None:
        """How long the save in flight has taken so far; None if there is none, or it has ended."""
        if self._in_flight is None or self._in_flight[1].done():
            return None
        return time.monotonic() - self._in_flight[0].began_at

    def begin(self, save: CheckpointSave[T]) -> None:
        """Has `save` written; there must be none in flight. Raises RuntimeError if no thread can be started: a limit
        was reached, or the main one is over."""
        self._in_flight = save, self._thread.submit(save.write_and_report)

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Has something else done on the thread. Raises RuntimeError as `begin` does."""
        return self._thread.submit(work)

    def joins(self, step: int, flushes: tuple[int, ...]) -> bool:
        """Whether the save in flight is one of this step, and answers these flushes too."""
        return (
            self._in_flight is not None and self._in_flight[0].step == step and self._in_flight[0].add_flushes(flushes)
        )

    def wait(self) -> LastCheckpoint | SaveError:
        """Waits for the save in flight, which there has to be, and gives its outcome. Raises what the save raised."""
        assert self._in_flight is not None  # its caller has asked
        (_, outcome), self._in_flight = self._in_flight, None
        return outcome.result()

    def close(self) -> None:
        """Waits until nothing is written any more."""
        self._thread.shutdown()
