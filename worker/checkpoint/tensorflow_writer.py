"""One checkpoint onto the disk, in three parts.

`take` reads, between two steps, what the next step changes; `write` turns that into files in a `.partial` folder and
commits them; `tidy` deletes what retention gives up. The last two may run on another thread while training goes on.
Host memory: a background save takes one copy of the state (of its tensors, not of the process), which is kept for the
next one; at most one save is in flight.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.checkpoints.retention import RetentionPolicy
from supervisor.protocol.layout import CheckpointName
from worker.checkpoint import snapshot
from worker.checkpoint.bundle_writer import BufferPool
from worker.checkpoint.snapshot import (
    Snapshot,
    SnapshotImpossible,
    find_not_finite,
    find_variables_not_finite,
    tensor_name,
)
from worker.devices.tpu import host_io_options
from worker.process.reporting import describe_error, mentions_full_disk, print_message
from worker.saving.commit import (
    CheckpointCommitter,
    CheckpointOrigin,
    NotFinite,
    Retention,
    SaveError,
    describe_os_error,
    is_disk_full,
    save_error_text,
)
from worker.saving.save import BlockingSaveNotice
from worker.state import extra_state
from worker.state.state_file import Position, TrainingState

_GRAPH_LOCATION = re.compile(r"\{\{[^}]*\}+ ?| ?\[Op:\w+\]")  # "{{function_node …}}" and "[Op:SaveV2]"

COPIES = "replicas"  # prefix of the second bundle: what replicas other than the first hold


@dataclass(frozen=True, slots=True)
class StepBoundary:
    """What the loop knows at a step boundary."""

    step: int
    position: Position
    metrics: Mapping[str, float]
    replica_metrics: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class CapturedTensors:
    """The state of one step boundary. `bundles`: by prefix; None where only TensorFlow can write them, from variables.
    `is_apart`: whether the next step leaves it as it is."""

    name: CheckpointName
    state: TrainingState
    bundles: Mapping[str, Snapshot] | None
    parts: Mapping[str, bytes]
    is_copy: bool


class TensorFlowWriter:
    """Writes the checkpoints of one attempt into one directory, and deletes those that retention gives up.

    Not for two threads at once.
    """

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
        parts: Callable[[], Mapping[str, bytes]] = dict,
    ) -> None:
        """`own`: generators of the script's own, saved with the global ones. `make_room`: whether a full disk may cost
        checkpoints that retention would keep. `check` is called before each commit; what it raises passes through
        `write`. `must_be_finite`: what holds a NaN or an infinity is not saved, but for variables that do so now.
        `parts`: called between steps, for more files of each checkpoint: their names and contents."""
        self._retention = Retention(directory, policy, make_room)
        self._committer = CheckpointCommitter(directory, origin, self._retention, check, _describe_cause, _is_full)
        self._directory = directory
        self._attempt = origin.attempt
        self._replicas = replicas
        self._own = own
        self._parts = parts
        self._hidden = extra_state.extra_variables(tracked)
        self._bundles = {layout.PREFIX: tracked}
        if self._hidden.copies:
            self._bundles[COPIES] = tf.train.Checkpoint(copies=list(self._hidden.copies))
        self._reserves = {prefix: BufferPool() for prefix in self._bundles}
        self._can_snapshot, self._stands_still = True, BlockingSaveNotice()
        self._exempt = find_variables_not_finite(tracked) if must_be_finite else None

    def capture(self, figures: StepBoundary, copied: bool) -> CapturedTensors:
        """The present state. Call it between steps, on the thread that trains.

        `copied`: training goes on while it is written, which `is_apart` of the result says; not where no copy can be
        made, or there is no memory for one. Raises SaveError if there is too little for anything.
        """
        name = CheckpointName(figures.step, self._attempt)
        host = TrainingState(
            step=figures.step,
            position=figures.position,
            seeds=extra_state.read_seeds(self._hidden),
            generators=extra_state.read_generators(self._own),
            metrics=figures.metrics,
            replica_metrics=figures.replica_metrics,
            replicas=self._replicas,
            copies=len(self._hidden.copies),
        )
        parts = self._parts()
        try:
            bundles, is_apart = self._snapshots(copied) if self._can_snapshot else (None, False)
            return CapturedTensors(name, host, bundles, parts, is_apart)
        except SnapshotImpossible as error:
            self._can_snapshot = False
            self._stands_still.explain_once(str(error))
            return CapturedTensors(name, host, None, parts, is_copy=False)
        except (tf.errors.OpError, MemoryError) as error:
            raise SaveError(save_error_text(name, _describe_cause(error) or describe_error(error))) from error

    def _snapshots(self, copied: bool) -> tuple[dict[str, Snapshot], bool]:
        """One of each bundle, and whether they are copies, for which there may be no memory."""
        taken = {}
        try:
            for prefix, each in self._bundles.items():
                taken[prefix] = snapshot.capture_tensors(each, copied, self._reserves[prefix])
        except MemoryError as error:
            if not copied:
                raise
            self._stands_still.explain_memory(error)
            return self._snapshots(copied=False)
        return taken, copied

    def commit(self, taken: CapturedTensors) -> Manifest:
        """Commits it. Raises SaveError for a full disk, a folder that can't be written, an I/O error or no memory.

        With `make_room` older checkpoints give way one after the other, where the disk is full. Raises NotFinite;
        AttemptSuperseded.
        """
        try:
            self._prove_finite(taken)
            return self._committer.commit(taken.name, taken.state.metrics, lambda folder: self._fill(folder, taken))
        finally:
            for bundle in (taken.bundles or {}).values():
                bundle.release()

    def _prove_finite(self, taken: CapturedTensors) -> None:
        if self._exempt is None or taken.bundles is None:
            return
        bad = sorted(find_not_finite(taken.bundles) - self._exempt)
        if bad:
            more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            raise NotFinite(f"cannot save {taken.name}: {tensor_name(bad[0])}{more} is not finite; training diverged")

    def _fill(self, folder: NewFolder, taken: CapturedTensors) -> None:
        for prefix, bundle in self._bundles.items():
            if taken.bundles is None:
                bundle.write(str(folder.path / prefix), options=host_io_options())
                snapshot.adopt_bundle_files(folder, prefix)
            else:
                taken.bundles[prefix].write(folder, prefix)
        for name, content in taken.parts.items():
            folder.add(name, content)
        folder.add(layout.STATE, taken.state.to_bytes())

    def tidy_up(self, newest: CheckpointName) -> None:
        """Retention, and the pointer for other people's tools. The checkpoint exists: nothing here may undo that.

        Each by itself, and retention first: on a full disk the pointer can't be written before something is deleted.
        """
        for what, act in (
            ("delete old checkpoints", self._retention.apply_policy),
            ("write TensorFlow's pointer", self._point_at),
        ):
            try:
                act(newest)
            except OSError as error:
                print_message(f"saved {newest}, but cannot {what} in {self._directory}: {error}")

    def _point_at(self, newest: CheckpointName) -> None:
        relative = f"{newest}/{layout.PREFIX}"
        content = f'model_checkpoint_path: "{relative}"\nall_model_checkpoint_paths: "{relative}"\n'
        durable.write_file(self._directory / layout.POINTER, content.encode())


def _is_full(error: BaseException | None) -> bool:
    """Whether an error of a save says that there is no space, or no quota, left."""
    if isinstance(error, tf.errors.ResourceExhaustedError):  # of memory too: no checkpoint's end would help there
        return mentions_full_disk(str(error.message))
    return is_disk_full(error)


def _describe_cause(error: BaseException) -> str | None:
    """An error of a save in a few words, None if it is no such: TensorFlow's carry a whole graph location."""
    if isinstance(error, tf.errors.OpError):
        return _GRAPH_LOCATION.sub("", " ".join(str(error.message).split()))[:300]
    if isinstance(error, MemoryError):
        return describe_error(error)
    return describe_os_error(error) if isinstance(error, OSError) else None
