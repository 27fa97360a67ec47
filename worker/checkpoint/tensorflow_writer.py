"""Writes the checkpoints of a TensorFlow run, in three parts.

`capture` reads, between two steps, what the next step changes; `commit` writes it into files in a `.partial` folder
and commits that; `tidy_up` applies retention. The last two may run on another thread while training goes on. A
background save needs host memory for one copy of the state (of its tensors, not of the process), which is reused for
the next one; at most one save is in flight. `prepare_copy` takes that memory early.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import removal
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.memory_tier.layout import Description, FilePlace
from worker.checkpoint import snapshot
from worker.checkpoint.checkpoint_tensors import CheckpointTensors, SnapshotImpossible
from worker.checkpoint.copy_memory import BufferPool, RoomInFile
from worker.checkpoint.replica_parts import COPIES
from worker.checkpoint.snapshot import Snapshot, find_not_finite, find_variables_not_finite, tensor_name
from worker.devices.tpu import host_io_options
from worker.process.reporting import describe_error, mentions_full_disk, print_message
from worker.saving.commit import (
    CheckpointCommitter,
    CheckpointOrigin,
    NotFinite,
    Publish,
    Retention,
    SaveError,
    describe_os_error,
    is_disk_full,
    save_error_text,
)
from worker.saving.memory_file import CopyRoom
from worker.saving.memory_tier import CannotCopy
from worker.saving.save import BlockingSaveNotice
from worker.state import extra_state
from worker.state.plain_values import NotSaveable
from worker.state.replica_values import replica_copies
from worker.state.script_conditions import Plain
from worker.state.state_file import EpochBody, Position, TrainingState

PREPARED_BYTES = 64 << 20  # a smaller copy takes some ten milliseconds into new memory
_GRAPH_LOCATION = re.compile(r"\{\{[^}]*\}+ ?| ?\[Op:\w+\]")  # "{{function_node …}}" and "[Op:SaveV2]"


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """What the loop knows at a step boundary. `passes`: what `PassLog` has to know. `body`: of the position's epoch."""

    step: int
    position: Position
    metrics: Mapping[str, float]
    replica_metrics: Mapping[str, tuple[float, ...]]
    passes: Mapping[str, Any] = field(default_factory=dict)
    body: EpochBody | None = None


@dataclass(frozen=True, slots=True)
class CapturedTensors:
    """The state of one step boundary.

    `bundles`: by prefix; None if only TensorFlow can write them, from the variables themselves. `extra_files`: contents
    by name. `is_copy`: whether the next step leaves it unchanged.
    """

    name: CheckpointName
    state: TrainingState
    bundles: Mapping[str, Snapshot] | None
    extra_files: Mapping[str, bytes]
    is_copy: bool


class TensorFlowWriter:
    """Writes the checkpoints of one attempt into one directory. Not for two threads at once."""

    def __init__(
        self,
        tracked: tf.train.Checkpoint,
        directory: Path,
        origin: CheckpointOrigin,
        policy: RetentionPolicy,
        replicas: int,
        own: Sequence[extra_state.OwnGenerator] = (),
        make_room: bool = False,
        check: Callable[[], None] = lambda: None,
        must_be_finite: bool = False,
        extra_files: Callable[[], Mapping[str, bytes]] = dict,
        script: Callable[[], Mapping[str, Plain]] = dict,
        publish: Publish | None = None,
        restored: CheckpointName | None = None,
    ) -> None:
        """`own`: generators of the script's own, saved with the global ones. `make_room`: whether a full disk may cost
        checkpoints that retention would keep. `check` is called before each commit; what it raises passes through
        `commit`. `must_be_finite`: refuse a state with a NaN or an infinity, except in variables that hold one now.
        `extra_files`: called between steps, for more files of each checkpoint: contents by name. `script`: what is
        recorded of the script's conditions. `publish`: as for CheckpointCommitter. `restored`: as for Retention."""
        self._retention = Retention(directory, policy, make_room, restored)
        self._committer = CheckpointCommitter(
            directory, origin, self._retention, check, _describe_cause, _is_full, publish
        )
        self._is_published = publish is not None
        self._directory = directory
        self._origin, self._attempt = origin, origin.attempt
        self._replicas = replicas
        self._own = own
        self._extra_files = extra_files
        self._script = script
        self._hidden = extra_state.extra_variables(tracked)
        self._bundles = {layout.PREFIX: tracked}
        copies = [replica_copies(variable) for variable in self._hidden.saved_apart(replicas)]
        self._copies_of = tuple(map(len, copies))
        if copies:
            self._bundles[COPIES] = tf.train.Checkpoint(copies=[copy for group in copies for copy in group])
        self._tensors = {prefix: CheckpointTensors(bundle) for prefix, bundle in self._bundles.items()}
        self._buffer_pools = {prefix: BufferPool() for prefix in self._bundles}
        self._can_capture, self._blocking_notice = True, BlockingSaveNotice()
        self._exempt = find_variables_not_finite(tracked) if must_be_finite else None

    def prepare_copy(self) -> None:
        """Takes the memory of a large copy beside training. Call it when all variables are there.

        Otherwise training waits in the first save until the kernel has cleared it: six times as long as for the copy
        alone, and more in a virtual machine whose host has to find it first.
        """
        for prefix, tensors in self._tensors.items():
            if (size := tensors.variable_bytes()) >= PREPARED_BYTES:
                self._buffer_pools[prefix].prepare(size)

    def capture(self, boundary: StepBoundary, copied: bool) -> CapturedTensors:
        """The present state. Call it between steps, on the thread that trains.

        `copied`: as a copy, so that training can go on meanwhile. The result's `is_copy` says whether it is one: some
        states can't be copied, and memory may be short. Raises SaveError if memory is too short for anything.
        """
        name = CheckpointName(boundary.step, self._attempt)
        host = self._training_state(boundary)
        try:
            parts = self._extra_files()
        except NotSaveable as error:
            raise SaveError(save_error_text(name, str(error))) from error
        try:
            bundles, is_apart = self._snapshots(copied) if self._can_capture else (None, False)
            return CapturedTensors(name, host, bundles, parts, is_apart)
        except SnapshotImpossible as error:
            self._can_capture = False
            for pool in self._buffer_pools.values():
                pool.clear()
            self._blocking_notice.explain_once(str(error))
            return CapturedTensors(name, host, None, parts, is_copy=False)
        except (tf.errors.OpError, MemoryError) as error:
            raise SaveError(save_error_text(name, _describe_cause(error) or describe_error(error))) from error

    def _training_state(self, boundary: StepBoundary) -> TrainingState:
        return TrainingState(
            step=boundary.step,
            position=boundary.position,
            seeds=extra_state.read_seeds(self._hidden),
            generators=extra_state.read_generators(self._own),
            metrics=boundary.metrics,
            replica_metrics=boundary.replica_metrics,
            replicas=self._replicas,
            copies=sum(self._copies_of),
            copies_of=self._copies_of,
            passes=boundary.passes,
            script=self._script(),
            body=boundary.body,
        )

    def copy_to_memory(self, boundary: StepBoundary, room: CopyRoom) -> Callable[[], Description]:
        """Copies the present state into `room`, as `capture` does for a save; call it as that is called.

        What it returns adds the other files and gives the description, on any thread. Raises CannotCopy, NoRoom.
        """
        host, created_wall_at = self._training_state(boundary), time.time()
        try:
            files = dict(self._extra_files())
            bundles = []
            for prefix, tensors in self._tensors.items():
                place = RoomInFile(room)
                bundles.append((prefix, place, snapshot.copy_tensors(tensors, place)))
        except (NotSaveable, SnapshotImpossible) as error:
            raise CannotCopy(str(error)) from error
        except tf.errors.OpError as error:
            raise CannotCopy(_describe_cause(error) or describe_error(error)) from error

        def complete() -> Description:
            files[layout.STATE] = host.to_bytes()
            files[layout.FROM_MEMORY] = json.dumps({"format": 1, "not_finite": sorted(self._exempt or ())}).encode()
            others = []
            for name, content in files.items():
                offset, memory = room.take(len(content))
                memory[:] = content
                others.append(FilePlace(name, offset, len(content)))
            return Description(
                job=self._origin.job,
                attempt=self._attempt,
                step=boundary.step,
                created_wall_at=created_wall_at,
                bundles=tuple(copy.place(prefix, place.offset) for prefix, place, copy in bundles),
                files=tuple(others),
                versions=self._origin.versions,
                topology=self._origin.topology,
                metrics=boundary.metrics,
            )

        return complete

    def _snapshots(self, copied: bool) -> tuple[dict[str, Snapshot], bool]:
        """A snapshot of each bundle, and whether these are copies: if memory is short they are not."""
        taken = {}
        try:
            for prefix, tensor in self._tensors.items():
                taken[prefix] = snapshot.capture_tensors(tensor, copied, self._buffer_pools[prefix])
        except MemoryError as error:
            if not copied:
                raise
            self._blocking_notice.explain_memory(error)
            return self._snapshots(copied=False)
        return taken, copied

    def commit(self, taken: CapturedTensors) -> Manifest:
        """Writes and commits it. Raises SaveError for a full disk, a folder that can't be written, an I/O error or a
        lack of memory; NotFinite; AttemptSuperseded."""
        try:
            if bad := self.names_not_finite(taken):
                raise NotFinite(f"cannot save {taken.name}: {not_finite_text(bad)}")
            return self._committer.commit(taken.name, taken.state.metrics, lambda folder: self._fill(folder, taken))
        finally:
            for bundle in (taken.bundles or {}).values():
                bundle.release()

    def names_not_finite(self, taken: CapturedTensors) -> list[str]:
        """The tensors that must be finite and are not."""
        if self._exempt is None or taken.bundles is None:
            return []
        return sorted(find_not_finite(taken.bundles) - self._exempt)

    def _fill(self, folder: NewFolder, taken: CapturedTensors) -> None:
        for prefix, bundle in self._bundles.items():
            if taken.bundles is None:
                bundle.write(str(folder.path / prefix), options=host_io_options())
                snapshot.adopt_bundle_files(folder, prefix)
            else:
                taken.bundles[prefix].write(folder, prefix)
        for name, content in taken.extra_files.items():
            folder.add(name, content)
        folder.add(layout.STATE, taken.state.to_bytes())

    def tidy_up(self, newest: CheckpointName) -> None:
        """Applies retention, then writes the pointer that TensorFlow's own tools read. Reports errors, raises none.

        Retention comes first: on a full disk the pointer can't be written before something is deleted.
        """
        point = ("write TensorFlow's pointer", self._point_at)
        delete_parts = ("delete older parts", partial(removal.delete_parts, self._directory))
        retain = ("delete old checkpoints", self._retention.apply_policy)
        for what, act in (retain, delete_parts if self._is_published else point):
            try:
                act(newest)
            except OSError as error:
                print_message(f"saved {newest}, but cannot {what} in {self._directory}: {error}")

    def _point_at(self, newest: CheckpointName) -> None:
        relative = f"{newest}/{layout.PREFIX}"
        content = f'model_checkpoint_path: "{relative}"\nall_model_checkpoint_paths: "{relative}"\n'
        durable.write_file(self._directory / layout.POINTER, content.encode())


def not_finite_text(names: Sequence[str]) -> str:
    """What is wrong with these tensors."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{tensor_name(names[0])}{more} is not finite; training diverged"


def _is_full(error: BaseException | None) -> bool:
    """Whether an error of a save says that no space, or no quota, is left."""
    if isinstance(error, tf.errors.ResourceExhaustedError):  # it means a lack of memory too
        return mentions_full_disk(str(error.message))
    return is_disk_full(error)


def _describe_cause(error: BaseException) -> str | None:
    """An error of a save in a few words, without TensorFlow's graph location; None for a defect of the program."""
    if isinstance(error, tf.errors.OpError):
        return _GRAPH_LOCATION.sub("", " ".join(str(error.message).split()))[:300]
    if isinstance(error, MemoryError):
        return describe_error(error)
    return describe_os_error(error) if isinstance(error, OSError) else None
