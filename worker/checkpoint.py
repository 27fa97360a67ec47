"""One checkpoint onto the disk: snapshot between two steps, write, commit.

Three parts, so that a background writer may take over the second: `snapshot` reads what the next step changes,
`write` turns it into files in a `.partial` folder, `commit` makes them exist.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from supervisor.protocol import checkpoints, durable, layout, manifest, retention
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.manifest import Manifest, ManifestError
from supervisor.protocol.retention import Kept, RetentionPolicy
from worker import exact
from worker.state import Position, State

COPIES = "replicas"  # prefix of the second bundle: what replicas other than the first hold


class SaveError(Exception):
    """A save did not reach its commit; nothing of it is left and older checkpoints are untouched."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the loop knows at a step boundary."""

    step: int
    position: Position
    metrics: Mapping[str, float]
    replica_metrics: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Origin:
    """What every manifest of this attempt says alike."""

    job: str
    attempt: int
    versions: Mapping[str, str]
    topology: Mapping[str, str | int | bool]


class CheckpointWriter:
    """Writes the checkpoints of one attempt into one directory, and deletes those that retention gives up."""

    def __init__(
        self, tracked: tf.train.Checkpoint, directory: Path, origin: Origin, policy: RetentionPolicy, replicas: int
    ) -> None:
        self._tracked = tracked
        self._directory = directory
        self._origin = origin
        self._policy = policy
        self._replicas = replicas
        self._hidden = exact.hidden_variables(tracked)
        self._known: dict[CheckpointName, Kept] = {}

    def save(self, figures: Figures) -> Manifest:
        """Commits a checkpoint of the present state. Call it between steps, on the thread that trains.

        Raises SaveError for a full disk, a folder that can't be written or an I/O error.
        """
        name = CheckpointName(figures.step, self._origin.attempt)
        partial = self._directory / name.partial
        try:
            self._write(partial, self._snapshot(figures))
            committed = self._commit(partial, name, figures.metrics)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(partial, ignore_errors=True)  # swept at the next start if this fails too
            raise SaveError(f"cannot save {name}: {_cause(error)}; earlier checkpoints are untouched") from error
        self._tidy(name)
        return committed

    def _snapshot(self, figures: Figures) -> State:
        return State(
            step=figures.step,
            position=figures.position,
            seeds=exact.read_seeds(self._hidden),
            generators=exact.read_generators(),
            metrics=figures.metrics,
            replica_metrics=figures.replica_metrics,
            replicas=self._replicas,
            copies=len(self._hidden.copies),
        )

    def _write(self, partial: Path, state: State) -> None:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        self._tracked.write(str(partial / layout.PREFIX))
        if self._hidden.copies:
            tf.train.Checkpoint(copies=list(self._hidden.copies)).write(str(partial / COPIES))
        (partial / layout.STATE).write_bytes(state.to_bytes())

    def _commit(self, partial: Path, name: CheckpointName, metrics: Mapping[str, float]) -> Manifest:
        names = tuple(sorted(entry.name for entry in partial.iterdir() if entry.is_file()))
        proof = Manifest(
            job=self._origin.job,
            attempt=name.attempt,
            step=name.step,
            created_wall_at=time.time(),
            files=manifest.record(partial, names),
            versions=self._origin.versions,
            topology=self._origin.topology,
            metrics=metrics,
        )
        durable.write_file(partial / layout.MANIFEST, proof.to_bytes())
        durable.commit_folder(partial, self._directory / str(name), names)
        return proof

    def _tidy(self, newest: CheckpointName) -> None:
        """The pointer for other people's tools, and retention. The checkpoint exists: nothing here may undo that."""
        try:
            self._point_at(newest)
            self._retain(newest)
        except OSError as error:
            sys.stderr.write(f"stepkeeper: saved {newest}, but cannot tidy up {self._directory}: {error}\n")

    def _point_at(self, newest: CheckpointName) -> None:
        relative = f"{newest}/{layout.PREFIX}"
        content = f'model_checkpoint_path: "{relative}"\nall_model_checkpoint_paths: "{relative}"\n'
        durable.write_file(self._directory / layout.POINTER, content.encode())

    def _retain(self, newest: CheckpointName) -> None:
        kept = [found for name in checkpoints.committed(self._directory) if (found := self._look_at(name)) is not None]
        for name in retention.expendable(kept, self._policy):
            if name != newest:
                checkpoints.delete(self._directory, name)
                self._known.pop(name, None)

    def _look_at(self, name: CheckpointName) -> Kept | None:
        """What retention needs to know; None for a damaged one, which is evidence and not ours to delete."""
        if name not in self._known:
            try:
                found = manifest.read(self._directory / str(name))
            except ManifestError:
                return None
            self._known[name] = Kept(name, found.created_wall_at, found.metrics)
        return self._known[name]


def _cause(error: OSError | tf.errors.OpError) -> str:
    """An error in a few words: TensorFlow's carry a whole graph location."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return " ".join(str(error.message).split())[:300]
