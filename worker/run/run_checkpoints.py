"""Keeps the checkpoints of one run of TensorFlow's: restores at its start, and answers for it."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from supervisor.protocol.launch import Interval
from supervisor.protocol.messages import Restored, WorkerExit
from worker.checkpoint.foreign_restore import restore_foreign
from worker.checkpoint.restore import RestoredCheckpoint, build_variables, restore_checkpoint
from worker.checkpoint.tensorflow_writer import CapturedTensors, StepBoundary, TensorFlowWriter
from worker.devices import conditions, tensorflow_conditions
from worker.process.attempt import Attempt
from worker.process.reporting import describe_error
from worker.saving.cadence import Cadence, auto_interval_of
from worker.saving.commit import CheckpointOrigin, NotFinite, SaveError
from worker.saving.directory import OpenedDirectory, Unfit, open_checkpoint_directory
from worker.saving.save import LastCheckpoint
from worker.saving.scheduler import SaveScheduler
from worker.state import extra_state, missing_variables
from worker.state.state_file import TrainingState


class RunCheckpoints(SaveScheduler[StepBoundary, CapturedTensors]):
    """Between a run of TensorFlow's and its checkpoint directory."""

    def __init__(
        self,
        tracked: tf.train.Checkpoint,
        strategy: tf.distribute.Strategy | None,
        attempt: Attempt,
        directory: Path | None,
        interval: Interval | None,
        own: Sequence[extra_state.OwnGenerator] = (),
        diverged: Callable[[int, str, int], NoReturn] | None = None,
    ) -> None:
        """`own`: generators of the script's own, whose state is kept too. `diverged`: called, between two steps, once
        the state of a step was refused because it is not finite, with the last step that was; None: nobody looks."""
        super().__init__(attempt, Cadence(interval, 0, time.monotonic(), auto_interval_of(attempt.launch)))
        self._tracked = tracked
        self._strategy = strategy
        self._own = own
        self._diverged = diverged
        self._directory = directory
        self._changed: tuple[str, ...] = ()  # of what the bits depend on, since this job trained last

    def restore_or_begin(self, total_steps: int | None) -> TrainingState | None:
        """Restores and says so; None at a fresh start.

        Leaves the process (`WorkerExit`) where the directory can't be used or its checkpoint doesn't fit.
        """
        build_variables(self._tracked, self._strategy)
        found = None
        if self._directory is not None:
            found = self._open_and_restore(self._directory)
        else:
            self._begin_without_directory()
        state = found.state if found is not None else None
        step = state.step if state is not None else 0
        self._cadence.restart_interval(step, time.monotonic())
        restored = Restored(
            self._attempt.number,
            step,
            checkpoint=found.name if found is not None else None,
            restore_s=found.took_s if found is not None else 0.0,
            total_steps=total_steps,
            unmatched=found.unmatched if found is not None else (),
            changed=self._changed,
        )
        self._attempt.reporter.send_message(restored)
        return state

    def check_completeness(
        self, roots: Iterable[missing_variables.Root], exempt: Iterable[Any], strict: bool, step: int, remedy: str
    ) -> None:
        """Looks for what training reaches from `roots` and no checkpoint would hold; `remedy` says what to do.

        It is named on stderr and with the first checkpoint; with `strict`, training ends here (INCOMPLETE).
        """
        if self._writer is None:
            return
        try:
            self._left_out = missing_variables.find_missing(self._tracked, self._own, roots, exempt)
        except Exception as error:  # noqa: BLE001 - it meets objects of every kind, and must not end what it watches
            self._left_out = (f"perhaps more than is known: looking failed with {describe_error(error)}",)
        if not self._left_out:
            return
        text = f"the checkpoints don't hold {', '.join(self._left_out)}; {remedy}"
        if strict:
            self._attempt.exit_with_error(WorkerExit.INCOMPLETE, f"cannot train on (strict): {text}", step)
        self._attempt.reporter.show_message(text)

    def close(self) -> None:
        self._diverged = None  # it is over, one way or another
        super().close()

    def _on_save_failed(self, step: int, error: SaveError) -> None:
        if isinstance(error, NotFinite) and self._diverged is not None:
            self._diverged(step, str(error), self._last.step if self._last is not None else 0)

    def _begin_without_directory(self) -> None:
        if self._attempt.channel is not None:
            self._attempt.channel.wait_for_go()
        self._attempt.reporter.show_message(
            "trains without checkpoints; give worker.Run a directory=, or the job a checkpoint_dir"
        )

    def _open_and_restore(self, directory: Path) -> RestoredCheckpoint | None:
        opened = self._opened = self._open_directory(directory)
        _ = self._tracked.save_counter  # so that `Checkpoint.restore(...).assert_consumed()` passes for other programs
        found = self._restore_from(opened.restore) if opened.restore is not None else None
        versions = tensorflow_conditions.versions()
        topology = tensorflow_conditions.topology(self._strategy)
        remark = self._attempt.reporter.show_message
        present = {**versions, **topology}
        self._changed = conditions.report_changed_conditions(
            present, opened.directory, opened.restore, remark, self._record_conditions
        )
        self._writer = TensorFlowWriter(
            self._tracked,
            opened.directory,
            CheckpointOrigin(self._attempt.launch.job, self._attempt.number, versions, topology),
            self._attempt.launch.retention,
            tensorflow_conditions.replica_count(self._strategy),
            self._own,
            self._attempt.launch.checkpoint_make_room,
            opened.lock.check_not_superseded,
            must_be_finite=self._diverged is not None,
            parts=self._extra_files,
        )
        return found

    def _open_directory(self, directory: Path) -> OpenedDirectory:
        return open_checkpoint_directory(self._attempt, directory)

    def _extra_files(self) -> Mapping[str, bytes]:
        """More files for the checkpoint that is being taken: by name, their contents."""
        return {}

    def _record_conditions(self, present: conditions.Conditions, directory: Path) -> None:
        conditions.record_conditions(present, directory)

    def _restore_from(self, path: Path) -> RestoredCheckpoint:
        """One of ours from its folder, or another program's from its prefix."""
        try:
            if not path.is_dir():
                return restore_foreign(self._tracked, path)
            found = restore_checkpoint(
                self._tracked, path, tensorflow_conditions.replica_count(self._strategy), self._own
            )
        except Unfit as error:
            self._attempt.exit_with_error(WorkerExit.CHECKPOINT_UNFIT, str(error))
        if path.parent == self._directory:  # another job's has to be saved here too
            self._last = LastCheckpoint(found.state.step, path.name, found.size_bytes)
        return found
