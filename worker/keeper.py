"""Keeps the checkpoints of one run: restores at its start, saves when due or asked, and answers for it."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from supervisor import __version__
from supervisor.protocol.exitcodes import WorkerExit
from supervisor.protocol.launch import Interval
from supervisor.protocol.messages import Committed, Restored, SaveFailed
from worker import devices
from worker.attempt import Attempt, Leaving
from worker.cadence import DEFAULT_INTERVAL, Cadence
from worker.checkpoint import CheckpointWriter, Figures, Origin, SaveError
from worker.opening import Opened, open_directory
from worker.restore import Found, Unfit, build, restore
from worker.state import State

LAST_SAVE_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # a full disk may be freed by somebody's clean-up; a broken one won't mend


@dataclass(frozen=True, slots=True)
class Last:
    """The checkpoint that holds the newest saved step: written by this run, or the one it was restored from."""

    step: int
    name: str
    size_bytes: int


class Keeper:
    """Between a run and its checkpoint directory. Everything here happens on the thread that trains."""

    def __init__(
        self,
        tracked: tf.train.Checkpoint,
        strategy: tf.distribute.Strategy | None,
        attempt: Attempt,
        directory: Path | None,
        interval: Interval | None,
    ) -> None:
        self.stalled_s = 0.0
        """For how long training stood still for saves."""
        self._tracked = tracked
        self._strategy = strategy
        self._attempt = attempt
        self._directory = directory
        self._opened: Opened | None = None
        self._writer: CheckpointWriter | None = None
        self._cadence = Cadence(interval or DEFAULT_INTERVAL, 0, time.monotonic())
        self._last: Last | None = None

    def begin(self, total_steps: int | None) -> State | None:
        """Restores and says so; None at a fresh start.

        Leaves the process (`WorkerExit`) where the directory can't be used or its checkpoint doesn't fit.
        """
        build(self._tracked, self._strategy)
        found = None
        if self._directory is not None:
            found = self._open_and_restore(self._directory)
        else:
            self._go_without()
        state = found.state if found is not None else None
        step = state.step if state is not None else 0
        self._cadence.saved(step, time.monotonic())
        restored = Restored(
            self._attempt.number,
            step,
            checkpoint=self._last.name if self._last is not None else None,
            restore_s=found.took_s if found is not None else 0.0,
            total_steps=total_steps,
            unmatched=found.unmatched if found is not None else (),
        )
        self._attempt.reporter.say(restored)
        return state

    def serve(self, step: int, figures: Callable[[], Figures]) -> None:
        """At a step boundary: saves if it was asked for or is due. Leaves the process if that was asked for too."""
        asked = self._attempt.requests.take()
        if asked is None:
            if self._writer is not None and self._cadence.is_due(step, time.monotonic()):
                self._save(figures(), ())
            return
        error = self._save(figures(), asked.flushes)
        if not asked.stop:
            return
        if error is not None and self._writer is not None:
            self._attempt.give_up(WorkerExit.SAVE_FAILED, f"told to stop, but {error}", step)
        raise Leaving(int(WorkerExit.STOPPED))

    def save_last(self, figures: Figures) -> None:
        """Commits the end of training, trying again for a while; leaves with SAVE_FAILED if it can't."""
        asked = self._attempt.requests.take()
        flushes = asked.flushes if asked is not None else ()
        for pause_s in (*LAST_SAVE_PAUSES_S, None):
            error = self._save(figures, flushes)
            if error is None or self._writer is None:
                return
            if pause_s is not None:
                time.sleep(pause_s)
        self._attempt.give_up(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", figures.step)

    def release(self) -> None:
        """Lets another run use the directory."""
        if self._opened is not None:
            self._opened.lock.release()

    def _go_without(self) -> None:
        if self._attempt.channel is not None:
            self._attempt.channel.wait_for_go()
        self._attempt.reporter.remark(
            "trains without checkpoints; give worker.Run a directory=, or the job a checkpoint_dir"
        )

    def _open_and_restore(self, directory: Path) -> Found | None:
        opened = self._opened = open_directory(self._attempt, directory)
        _ = self._tracked.save_counter  # so that `Checkpoint.restore(...).assert_consumed()` passes for other programs
        found = self._restore(opened.restore) if opened.restore is not None else None
        self._writer = CheckpointWriter(
            self._tracked,
            opened.directory,
            Origin(self._attempt.launch.job, self._attempt.number, _versions(), devices.topology(self._strategy)),
            self._attempt.launch.retention,
            devices.replica_count(self._strategy),
        )
        return found

    def _restore(self, folder: Path) -> Found:
        try:
            found = restore(self._tracked, folder, devices.replica_count(self._strategy))
        except Unfit as error:
            self._attempt.give_up(WorkerExit.CHECKPOINT_UNFIT, str(error))
        self._last = Last(found.state.step, folder.name, found.size_bytes)
        return found

    def _save(self, figures: Figures, flushes: tuple[int, ...]) -> str | None:
        """Commits this step, unless a checkpoint holds it already, and says so; the error if it could not."""
        is_held = self._writer is None or (self._last is not None and self._last.step == figures.step)
        if is_held and not flushes:
            return None
        started = time.monotonic()
        if self._writer is None:
            error: str | None = "cannot save: this run has no checkpoint directory"
        else:
            error = None if is_held else self._write(self._writer, figures)
        took_s = time.monotonic() - started
        self.stalled_s += took_s
        self._answer(figures.step, flushes, took_s, error)
        return error

    def _write(self, writer: CheckpointWriter, figures: Figures) -> str | None:
        try:
            committed = writer.save(figures)
        except SaveError as error:
            self._cadence.failed(time.monotonic())
            return str(error)
        self._cadence.saved(figures.step, time.monotonic())
        self._last = Last(committed.step, str(committed.name), committed.size_bytes)
        return None

    def _answer(self, step: int, flushes: tuple[int, ...], took_s: float, error: str | None) -> None:
        number, last = self._attempt.number, self._last
        if error is not None or last is None:
            self._attempt.reporter.say(SaveFailed(number, step, str(error), flushes))
        else:
            committed = Committed(number, step, last.name, last.size_bytes, took_s, stall_s=took_s, flushes=flushes)
            self._attempt.reporter.say(committed)


def _versions() -> dict[str, str]:
    return {
        "tensorflow": tf.__version__,
        "keras": tf.keras.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "stepkeeper": __version__,
    }
