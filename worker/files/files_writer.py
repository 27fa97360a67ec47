"""Writes checkpoints of files that the program itself makes."""

import errno
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from supervisor.protocol import layout
from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.checkpoints.new_folder import NewFolder
from supervisor.protocol.layout import CheckpointName
from worker.process.reporting import describe_error, print_message
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
from worker.state import random_generators, run_state
from worker.state.plain_values import NotSaveable
from worker.state.run_state import RunState
from worker.state.script_conditions import Plain
from worker.state.state_file import EpochBody, Position

FORMAT = 1
PROBE_BYTES = 1 << 20  # what a disk has room for if it refused a write for another reason


class Files(Protocol):
    """How a program writes its state into files and reads it back."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Names of libraries and their versions, for the manifest."""

    @property
    def topology(self) -> Mapping[str, str | int | bool]:
        """What else the results depend on. `deterministic`, if present: whether the program's sums repeat."""

    def write(self, folder: Path) -> None:
        """Writes the present state into files of an empty folder. Called between two steps.

        Raises OSError; or NotFinite, naming the values, if it checks for that: then training diverged
        (docs/failures.md).
        """

    def read(self, folder: Path) -> None:
        """Reads the state back. Raises Unfit if another program wrote it.

        OSError, and the errors of a device or of a lack of memory, may pass through; the next attempt tries again.
        """

    def read_foreign(self, prefix: Path) -> int:
        """Starts from another program's TensorFlow checkpoint; returns its step. Raises Unfit if it can't."""


@runtime_checkable
class Copying(Protocol):
    """`Files` that can be written while training goes on."""

    def copied(self) -> Callable[[Path], None] | None:
        """A copy of the present state, as what writes it: given an empty folder, on another thread, as `write` does.

        None where that can't be. Called between two steps. Raises MemoryError, upon which the state is written by
        `write`, while training waits; OSError, which ends this save; NotFinite.
        """


@dataclass(frozen=True, slots=True)
class FilesBoundary:
    """What the loop knows at a step boundary. `state`: the Python values of the loop; `generators`: the script's.

    `script`: what `ScriptConditions` records; `data`: a description of what the run reads; `body`: of the position's
    epoch.
    """

    step: int
    position: Position
    metrics: Mapping[str, float]
    state: RunState
    generators: tuple[Any, ...] = ()
    script: Mapping[str, Plain] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    body: EpochBody | None = None


@dataclass(frozen=True, slots=True)
class CapturedFiles:
    """The state of one step boundary. `state`: the content of `state.json`; `values`: that of the file with the Python
    values of the loop, None: there are none; `write`: writes the program's files."""

    name: CheckpointName
    state: bytes
    values: bytes | None
    metrics: Mapping[str, float]
    write: Callable[[Path], None]
    is_copy: bool


class FilesWriter:
    """Writes the checkpoints of one attempt into one directory. Not for two threads at once."""

    def __init__(
        self,
        files: Files,
        directory: Path,
        origin: CheckpointOrigin,
        retention: Retention,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` is called before each commit; what it raises passes through `commit`."""
        self._files = files
        self._directory = directory
        self._attempt = origin.attempt
        self._retention = retention
        self._committer = CheckpointCommitter(directory, origin, retention, check, _describe_cause)
        self._blocking_notice = BlockingSaveNotice()

    def capture(self, boundary: FilesBoundary, copied: bool) -> CapturedFiles:
        """The present state. `copied`: as a copy, if the program can make one, so that training can go on meanwhile.

        If there is no memory for a copy, training waits. Raises SaveError; NotFinite.
        """
        name = CheckpointName(boundary.step, self._attempt)
        state = {
            "format": FORMAT, "kind": type(self._files).__name__, "step": boundary.step,
            "epoch": boundary.position.epoch, "batch": boundary.position.batch, "examples": boundary.position.examples,
            "begun": boundary.position.begun, "body": None if boundary.body is None else boundary.body.to_json(),
            "metrics": dict(boundary.metrics),
            "generators": random_generators.read(boundary.generators), "script": dict(boundary.script),
            "data": dict(boundary.data),
        }  # fmt: skip
        try:
            values = boundary.state.to_bytes()
        except NotSaveable as error:
            raise SaveError(save_error_text(name, str(error))) from error
        host = (json.dumps(state, allow_nan=False) + "\n").encode()
        try:
            write = self._copied() if copied else None
        except OSError as error:
            raise SaveError(save_error_text(name, describe_os_error(error))) from error
        except NotFinite as error:
            raise NotFinite(save_error_text(name, str(error))) from error
        return CapturedFiles(
            name, host, values, boundary.metrics, write or self._files.write, is_copy=write is not None
        )

    def _copied(self) -> Callable[[Path], None] | None:
        if not isinstance(self._files, Copying):
            return None
        try:
            return self._files.copied()
        except MemoryError as error:
            self._blocking_notice.explain_memory(error)
            return None

    def commit(self, taken: CapturedFiles) -> Manifest:
        """Commits it; on a full disk, deletes older checkpoints if it may. Raises SaveError; AttemptSuperseded."""
        return self._committer.commit(taken.name, taken.metrics, lambda folder: self._fill(folder, taken))

    def _fill(self, folder: NewFolder, taken: CapturedFiles) -> None:
        """Writes the program's files, and `state.json`. Raises OSError; with an errno if the disk is full."""
        try:
            taken.write(folder.path)
        except OSError as error:
            if error.errno is None and not _has_room(folder.path):
                reason = f"No space left on device ({describe_error(error)})"
                raise OSError(errno.ENOSPC, reason, str(folder.path)) from error
            if error.errno is not None and error.filename is None:  # writing to an open file knows no name
                raise OSError(error.errno, error.strerror, str(folder.path)) from error
            raise
        for path in sorted(folder.path.iterdir()):
            folder.adopt(path.name)
        if taken.values is not None:
            folder.add(run_state.FILE, taken.values)
        folder.add(layout.STATE, taken.state)

    def tidy_up(self, newest: CheckpointName) -> None:
        """Applies retention. Reports errors, raises none: the checkpoint is committed."""
        try:
            self._retention.apply_policy(newest)
        except OSError as error:
            print_message(f"cannot delete old checkpoints in {self._directory}: {error}")


def _describe_cause(error: BaseException) -> str | None:
    """An error of a save in a few words; None for a defect of the program."""
    if isinstance(error, OSError):
        return describe_os_error(error)
    return describe_error(error) if isinstance(error, MemoryError) else None


def _has_room(folder: Path) -> bool:
    """Whether PROBE_BYTES more could be written there."""
    try:
        descriptor = os.open(folder / ".probe", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, PROBE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        return not is_disk_full(error)
    return True
