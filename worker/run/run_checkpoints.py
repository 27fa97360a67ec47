"""The checkpoints of one TensorFlow run: opens the directory, restores, then schedules saves."""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Restored
from worker.base.following_run import PARTS_REMEDY
from worker.base.run_settings import RunSettings
from worker.checkpoint.foreign_restore import restore_foreign
from worker.checkpoint.replica_parts import ReplicaParts
from worker.checkpoint.restore import (
    RestoredCheckpoint,
    build_variables,
    finish_normalization,
    require_finite,
    restore_checkpoint,
)
from worker.checkpoint.tensorflow_writer import CapturedTensors, StepBoundary, TensorFlowWriter
from worker.checks import missing_variables, reachability
from worker.checks.findings import Finding
from worker.devices import conditions, tensorflow_conditions
from worker.devices.gpu_check import missing_gpus
from worker.process.attempt import Attempt
from worker.process.reporting import describe_error
from worker.saving.commit import CheckpointOrigin
from worker.saving.directory import OpenedDirectory, Unfit, open_checkpoint_directory
from worker.saving.memory_checkpoint import MemoryCheckpoint
from worker.saving.memory_tier import MemoryTier, has_copies
from worker.saving.save import restored_checkpoint
from worker.saving.scheduler import SaveScheduler
from worker.state import extra_state, run_state
from worker.state.replica_values import ALONE
from worker.state.run_state import RunState
from worker.state.script_conditions import OTHER_SCRIPT, SET_AT_STEP, Condition, Plain, ScriptConditions
from worker.state.state_file import TrainingState
from worker.state.tensorflow_script_conditions import read_conditions
from worker.state.value_restorer import NotRestorable


@dataclass(frozen=True, slots=True)
class SavedState:
    """What each checkpoint of a run holds. `generators`: the script's own; `values`: Python values of the loop."""

    tracked: tf.train.Checkpoint
    strategy: tf.distribute.Strategy | None
    generators: tuple[extra_state.OwnGenerator, ...]
    values: RunState


class RunCheckpoints(SaveScheduler[StepBoundary, CapturedTensors]):
    """The checkpoints of one TensorFlow run in one process."""

    _place = ALONE

    def __init__(
        self,
        attempt: Attempt,
        settings: RunSettings,
        state: SavedState,
        not_finite: Callable[[int, str, int], NoReturn] | None,
    ) -> None:
        """`not_finite`: as for `SaveScheduler`."""
        super().__init__(attempt, settings.interval, strict=settings.strict, not_finite=not_finite)
        self._directory = settings.directory
        self._state = state
        self._restored: Restored | None = None
        self._is_from_memory = False
        self._changed: tuple[str, ...] = ()  # conditions that differ from those under which this job trained last
        self._script = ScriptConditions({})
        self._parts_remedy = PARTS_REMEDY
        self._tensor_writer: TensorFlowWriter | None = None
        self._read_later = contextlib.ExitStack()  # a folder of what was in memory, until the first step is done

    def restore_or_begin(
        self, total_steps: int | None, set_at_step: str = SET_AT_STEP, parts_remedy: str = PARTS_REMEDY
    ) -> TrainingState | None:
        """Restores the selected checkpoint and reports it; None if training begins at step 0.

        `set_at_step`: how the script does something once, after a restore; `parts_remedy`: how it trains in parts.
        Exits with a code of `WorkerExit` if the directory can't be used or the checkpoint doesn't fit.
        """
        self._parts_remedy = parts_remedy
        build_variables(self._state.tracked, self._state.strategy)
        self._script = ScriptConditions(self._read_script(), set_at_step)
        checkpoint = None
        if self._directory is not None:
            checkpoint = self._open_and_restore(self._directory)
        else:
            self._begin_without_directory()
        state = checkpoint.state if checkpoint is not None else None
        step = state.step if state is not None else 0
        if step and self._directory in self._attempt.ended_in:
            self._changed += (f"the script's run before this one had ended at step {step}",)
        self._cadence.restart_interval(step, time.monotonic())
        restored = Restored(
            self._attempt.number,
            step,
            checkpoint=checkpoint.name if checkpoint is not None else None,
            restore_s=checkpoint.took_s if checkpoint is not None else 0.0,
            total_steps=total_steps,
            unmatched=checkpoint.unmatched if checkpoint is not None else (),
            changed=(*self._changed, *self._script.said),
            replicas=None if self._state.strategy is None else self._state.strategy.num_replicas_in_sync,
            gpus_missing=missing_gpus(),
            from_memory=self._is_from_memory,
        )
        if restored.gpus_missing is not None:
            self._attempt.reporter.show_message(restored.gpus_missing)
        self._attempt.reporter.send_message(restored)
        self._restored = restored
        return state

    def begin_steps(self, changed_data: tuple[str, ...]) -> None:
        """The first step is done, so all variables are there: takes the memory for the copies that saves make.

        Says that training continues on other data than before: on stderr, and once more as `restored`. So it says if
        the script has set values of its own in the place of restored ones.
        """
        self._read_later.close()
        if self._tensor_writer is not None and self._place == ALONE:
            self._tensor_writer.prepare_copy()
        if changed_data:
            self._show_changes(f"training continues on other data than before: {'; '.join(changed_data)}")
        is_updated = self._script.has_differences and self._script.update(self._read_script())
        if self._restored is not None and (changed_data or is_updated) and self._attempt.channel is not None:
            changed = (*self._changed, *self._script.said, *changed_data)
            self._attempt.channel.send_message(replace(self._restored, changed=changed))

    def _read_script(self) -> dict[str, Condition]:
        """The present conditions that the script sets."""
        return read_conditions(self._state.tracked, self._state.generators)

    def _compare_script(self, before: Mapping[str, Plain], step: int) -> None:
        """Says which values of the script are not those that the checkpoint was trained with."""
        changed = self._script.compare(before, self._read_script(), step)
        if changed:
            self._show_changes(f"{OTHER_SCRIPT}: {'; '.join(changed)}")

    def _show_changes(self, text: str) -> None:
        self._attempt.reporter.show_message(text)

    def check_completeness(
        self,
        roots: Iterable[reachability.Root],
        exempt: Iterable[Any],
        step: int,
        remedy: str,
        find_problems: Callable[[], Sequence[Finding]],
    ) -> None:
        """Looks for state that training reaches from `roots` and that no checkpoint would hold.

        `find_problems`: finds what else would not come back. All is reported, with what to do (`remedy` for state).
        """
        if self._writer is None:
            return
        missing: tuple[str, ...] = ()
        findings: Sequence[Finding] = ()
        try:
            missing = missing_variables.find_missing(self._state.tracked, self._state.generators, roots, exempt)
            findings = find_problems()
        except Exception as error:  # noqa: BLE001 - it inspects objects of every kind, and must not end training
            missing = (*missing, f"some state, perhaps: the search for it failed with {describe_error(error)}")
        self.report_findings(findings, step, missing, remedy)

    def close(self) -> None:
        self._read_later.close()
        super().close()

    def _begin_without_directory(self) -> None:
        if self._attempt.channel is not None:
            self._attempt.channel.wait_for_go()
        self._attempt.reporter.show_message(
            "this run saves no checkpoints; give worker.Run a directory=, or set the job's checkpoint_dir"
        )

    def _open_and_restore(self, directory: Path) -> RestoredCheckpoint | None:
        opened = self._open_directory(directory)
        # reading it creates it, so that `Checkpoint.restore(...).assert_consumed()` passes for other programs
        _ = self._state.tracked.save_counter
        with contextlib.ExitStack() as restoring:
            if opened.memory is not None:
                opened = self._in_folder(opened, opened.memory, restoring)
            self._opened = opened
            checkpoint = self._restore(opened)
            if checkpoint is not None and checkpoint.unmatched:
                self._read_later = restoring.pop_all()  # TensorFlow reads the rest as the first step makes variables
            return checkpoint

    def _in_folder(
        self, opened: OpenedDirectory, memory: MemoryCheckpoint, restoring: contextlib.ExitStack
    ) -> OpenedDirectory:
        """With what is in memory instead of the older checkpoint on the disk, if the host has room for a folder."""
        try:
            return replace(opened, restore=restoring.enter_context(memory.as_folder()))
        except (OSError, MemoryError) as error:
            text = f"cannot restore {memory.name} from memory: {error}; an older state is restored"
            self._attempt.reporter.show_message(text)
            return replace(opened, memory=None)

    def _restore(self, opened: OpenedDirectory) -> RestoredCheckpoint | None:
        if opened.restore is not None:
            self._attempt.report_restoring(opened.restore, from_memory=opened.memory is not None)
        checkpoint = self._restore_from(opened.restore) if opened.restore is not None else None
        self._is_from_memory = opened.memory is not None
        versions = tensorflow_conditions.versions()
        topology = tensorflow_conditions.topology(self._state.strategy)
        remark = self._attempt.reporter.show_message
        present = {**versions, **topology}
        self._changed = conditions.report_changed_conditions(
            present, opened.directory, opened.restore, remark, self._record_conditions
        )
        self._writer = self._tensor_writer = writer = self._make_writer(
            self._state.tracked,
            opened.directory,
            CheckpointOrigin(self._attempt.launch.job, self._attempt.number, versions, topology),
            self._attempt.launch.retention,
            tensorflow_conditions.replica_count(self._state.strategy),
            self._state.generators,
            self._attempt.launch.checkpoint_make_room,
            opened.lock.check_not_superseded,
            must_be_finite=self._not_finite is not None,
            extra_files=self._extra_files,
            script=self._script.to_json,
            restored=opened.restored_here,
        )
        if has_copies(self._attempt) and self._place == ALONE and not self._attempt.no_copies:
            self._memory = MemoryTier(self._attempt, writer.copy_to_memory)
        if checkpoint is not None:
            finish_normalization(self._state.tracked)
            self._compare_script(checkpoint.state.script, checkpoint.state.step)
        return checkpoint

    def _make_writer(self, *arguments: Any, **named: Any) -> TensorFlowWriter:
        return TensorFlowWriter(*arguments, **named)

    def _open_directory(self, directory: Path) -> OpenedDirectory:
        return open_checkpoint_directory(self._attempt, directory, restores_memory=self._place == ALONE)

    def _extra_files(self) -> Mapping[str, bytes]:
        """More files for the checkpoint that is being captured: contents by name. Raises NotSaveable."""
        content = self._state.values.to_bytes()
        return {} if content is None else {run_state.FILE: content}

    def _record_conditions(self, present: conditions.Conditions, directory: Path) -> None:
        conditions.record_conditions(present, directory)

    def _restore_from(self, path: Path) -> RestoredCheckpoint:
        """Restores a stepkeeper checkpoint from its folder, or another program's from its prefix."""
        try:
            if not path.is_dir():
                return restore_foreign(self._state.tracked, path)
            with self._readable(path) as folder:
                checkpoint = self._restore_from_folder(folder)
        except NotRestorable as error:
            self._exit_unfit(f"cannot restore {path.name}: {error}")
        except Unfit as error:
            self._exit_unfit(str(error))
        made_at = checkpoint.created_wall_at
        if path.parent == self._directory and made_at is not None:  # one of another job has to be saved here too
            self._last = restored_checkpoint(checkpoint.state.step, path.name, checkpoint.size_bytes, made_at)
        return checkpoint

    def _exit_unfit(self, text: str) -> NoReturn:
        """Exits as the checkpoint does not fit. If the script's own run before this one wrote it, no retry helps."""
        if self._directory not in self._attempt.ended_in:
            self._attempt.exit_with_error(WorkerExit.CHECKPOINT_UNFIT, text)
        self._attempt.exit_with_error(
            WorkerExit.BAD_LAUNCH,
            f"cannot begin the script's next run in the checkpoint directory of the one before it, where it would go "
            f"on from that one's end: {self._parts_remedy}. {text}",
        )

    def _readable(self, path: Path) -> AbstractContextManager[Path]:
        """A folder from which this process reads the checkpoint in `path`."""
        return nullcontext(path)

    def _restore_from_folder(self, folder: Path) -> RestoredCheckpoint:
        """Raises NotRestorable and Unfit."""
        replicas = tensorflow_conditions.replica_count(self._state.strategy)
        memory = None if self._opened is None else self._opened.memory
        checkpoint = restore_checkpoint(
            self._state.tracked,
            folder,
            replicas,
            self._state.generators,
            self._place,
            memory,
        )
        parts = ReplicaParts(folder)
        parts.complete_fit(self._state.tracked, self._place)
        if self._not_finite is not None:
            require_finite(self._state.tracked, folder)
        run_state.restore_from(
            folder, self._state.values, lambda name, value: parts.complete_state(name, value, self._place.processes)
        )
        return checkpoint
