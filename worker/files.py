"""A run whose state the program itself writes into files: PyTorch, TF1 sessions, NumPy arrays. Without TensorFlow.

The same guarantees as `worker.Run`: restores a proven checkpoint before the loop, commits durably, saves when due or
asked, answers the daemon, keeps the data position and the generators of Python and NumPy.
"""

import contextlib
import json
import platform
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from supervisor import __version__
from supervisor.protocol import checkpoints, durable, layout, manifest, retention
from supervisor.protocol.exitcodes import WorkerExit
from supervisor.protocol.launch import parse_interval
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.manifest import Manifest, ManifestError
from supervisor.protocol.messages import Committed, Done, Restored, SaveFailed
from supervisor.protocol.retention import Kept
from worker import attempt, generators
from worker.attempt import Leaving
from worker.cadence import Cadence, auto_of
from worker.divergence import Watch
from worker.lock import Overtaken
from worker.opening import Opened, open_directory
from worker.steps import Steps
from worker.tensorboard import EVERY

FORMAT = 1
LAST_SAVE_PAUSES_S = (1.0, 2.0, 4.0, 8.0)  # a full disk may be freed by somebody's clean-up


class Unfit(Exception):
    """A whole checkpoint does not fit this program; the text says how."""


class NotFinite(Exception):
    """The state holds a NaN or an infinity, and is no place to begin from; the text names what."""


class Files(Protocol):
    """How a program's state becomes files and comes back."""

    versions: Mapping[str, str]
    """Names of libraries and their versions, for the manifest."""
    topology: Mapping[str, str | int | bool]
    """What else the bits depend on."""

    def write(self, folder: Path) -> None:
        """Writes the present state into files of an empty folder. Called between two steps.

        Raises OSError; NotFinite, if it looks for that: then training diverged (docs/failures.md).
        """

    def read(self, folder: Path) -> None:
        """Takes the state back. Raises Unfit if it is another program's; OSError, and what a device or a lack of memory
        raises, may pass, and the next attempt tries again.
        """

    def read_foreign(self, prefix: Path) -> int:
        """Takes another program's TensorFlow checkpoint as a start, gives its step. Raises Unfit if it can't."""


class FilesRun(Steps):
    """One training run around a loop of the script's own, as a context manager.

    A stop leaves `step_done` as SystemExit with status 143, after the save. Training stands still for a save.
    """

    def __init__(
        self,
        files: Files,
        *,
        total_steps: int | None = None,
        directory: str | Path | None = None,
        interval: str | None = None,
        summaries: str | Path | None = None,
        summary_every: int = EVERY,
    ) -> None:
        """`directory` and `interval` (as "500 steps", or "auto") hold where the job's configuration says nothing.

        `summaries`: a folder for TensorBoard, which gets the figures of each step that is a multiple of
        `summary_every`.
        """
        super().__init__(total_steps, summaries, summary_every)
        self.epoch = 0
        self.batch = 0
        """The data go on with this batch of that epoch, both from 0."""
        self._files = files
        told = self._attempt.launch
        given = told.checkpoint_dir or (Path(directory) if directory is not None else None)
        if given is None:
            raise ValueError("cannot keep checkpoints: give the run a directory=, or the job a checkpoint_dir")
        self._directory = given
        wanted = told.interval or (parse_interval(interval) if interval not in (None, "auto") else None)
        self._cadence = Cadence(wanted, 0, time.monotonic(), auto_of(told))
        self._opened: Opened | None = None
        self._last: Committed | None = None
        self._metrics: Mapping[str, float] = {}
        self._watch = Watch(told.loss_spike)
        self._stalled_s = 0.0

    def __enter__(self) -> Self:
        opened = self._opened = open_directory(self._attempt, self._directory)
        started = time.monotonic()
        name = None
        if opened.restore is not None:
            try:
                name = self._restore(opened.restore)
            except BaseException as error:
                self._release()
                if isinstance(error, Unfit):
                    self._attempt.give_up(WorkerExit.CHECKPOINT_UNFIT, f"cannot restore {opened.restore}: {error}")
                raise
        self._cadence.begun(self.step, time.monotonic())
        self._attempt.requests.step = self.step
        took_s = time.monotonic() - started
        self._attempt.reporter.say(Restored(self._attempt.number, self.step, name, took_s, self.total_steps))
        self._stop.install()
        return self

    def _release(self) -> None:
        if self._opened is not None:
            self._opened.lock.release()

    def step_done(self, *, epoch: int, batch: int, **metrics: float) -> None:
        """One step is complete, and the data go on with `batch` of `epoch`. Saves if it is time; may leave."""
        self.step, self.epoch, self.batch = self.step + 1, epoch, batch
        self._look(metrics)
        self._metrics = {name: value for name, value in metrics.items() if np.isfinite(value)}
        self._attempt.requests.step = self.step
        if self._board is not None and self._board.is_due(self.step):
            self._board.step(self.step, self._metrics, {}, self._stalled_s)
        self._tell_progress(self.epoch, lambda: self._metrics, self._cadence.chosen_s, self._stalled_s)
        asked = self._attempt.requests.take()
        if asked is None:
            if self._cadence.is_due(self.step, time.monotonic()):
                self._save(())
            return
        error = self._save(asked.flushes)
        if asked.stop:
            if error is not None:
                self._attempt.give_up(WorkerExit.SAVE_FAILED, f"told to stop, but {error}", self.step)
            raise Leaving(int(WorkerExit.STOPPED))

    def _look(self, metrics: Mapping[str, float]) -> None:
        """Leaves if training diverged. Which batches the loop takes is its own affair: `skip` only goes back."""
        on_nan = self._attempt.launch.on_nan
        if on_nan != "off":
            self._watch.note(self.step, metrics)
            trouble = self._watch.look()
            if trouble is not None:
                self._attempt.diverged(trouble.text, trouble.step, on_nan in ("rollback", "skip"))

    def _finish(self) -> None:
        asked = self._attempt.requests.take()
        flushes = asked.flushes if asked is not None else ()
        for pause_s in (*LAST_SAVE_PAUSES_S, None):
            error = self._save(flushes)
            if error is None:
                self._attempt.reporter.say(Done(self._attempt.number, self.step, self._metrics))
                return
            if pause_s is not None:
                time.sleep(pause_s)
        self._attempt.give_up(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", self.step)

    def _restore(self, path: Path) -> str:
        if not path.is_dir():
            self.step = self._files.read_foreign(path)
            return path.name
        try:
            found = json.loads(durable.read_file(path / layout.STATE, 64 << 20))
            if found.get("format") != FORMAT or found.get("kind") != type(self._files).__name__:
                whose = found.get("kind", "TensorFlow objects")
                raise Unfit(f"it is a checkpoint of {whose}; give this program a checkpoint_dir of its own")
            self._files.read(path)
            generators.write(found["generators"])
            self.step, self.epoch, self.batch = found["step"], found["epoch"], found["batch"]
            self._metrics = found["metrics"]
        except FileNotFoundError as error:
            if not (path / layout.MANIFEST).exists():
                raise  # somebody deleted it since it was proven: the next attempt gets another one
            raise Unfit(attempt.one_line(error)) from error  # another program's has other files
        except (ValueError, KeyError, TypeError) as error:
            raise Unfit(attempt.one_line(error)) from error
        if path.parent == self._directory:
            size = manifest.read(path).size_bytes
            self._last = Committed(self._attempt.number, self.step, path.name, size, 0.0, 0.0)
        return path.name

    def _save(self, flushes: tuple[int, ...]) -> str | None:
        """Commits this step, unless a checkpoint holds it already, and has it answered; the error if it failed."""
        started = time.monotonic()
        self._tell_section("save")
        try:
            return self._save_at(started, flushes)
        finally:
            self._stalled_s += time.monotonic() - started
            self._tell_section(None)

    def _save_at(self, started: float, flushes: tuple[int, ...]) -> str | None:
        is_new = self._last is None or self._last.step != self.step
        if is_new:
            name = CheckpointName(self.step, self._attempt.number)
            try:
                size_bytes = self._commit(name)
            except Overtaken as error:
                self._take_back(name)
                self._attempt.give_up(WorkerExit.LOCKED, str(error), self.step)
            except NotFinite as error:
                self._take_back(name)
                text = f"cannot save {name}: {error}; earlier checkpoints are untouched"
                self._attempt.reporter.say(SaveFailed(self._attempt.number, self.step, text, flushes))
                self._attempt.diverged(text, self.step, self._attempt.launch.on_nan in ("rollback", "skip"))
            except OSError as error:
                self._take_back(name)
                self._cadence.failed(time.monotonic())
                text = f"cannot save {name}: {error}; earlier checkpoints are untouched"
                self._attempt.reporter.say(SaveFailed(self._attempt.number, self.step, text, flushes))
                return text
            self._last = Committed(self._attempt.number, self.step, str(name), size_bytes, 0.0, 0.0)
        if self._last is not None and (is_new or flushes):
            took_s = time.monotonic() - started
            if is_new:
                self._cadence.auto.measured(took_s, took_s)  # training waits for the whole save
            self._attempt.reporter.say(replace(self._last, save_s=took_s, stall_s=took_s, flushes=flushes))
        self._cadence.begun(self.step, time.monotonic())
        self._cadence.succeeded()
        self._retain()
        return None

    def _commit(self, name: CheckpointName) -> int:
        partial = self._directory / name.partial
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        self._files.write(partial)
        state = {
            "format": FORMAT, "kind": type(self._files).__name__, "step": self.step, "epoch": self.epoch,
            "batch": self.batch, "metrics": dict(self._metrics), "generators": generators.read(),
        }  # fmt: skip
        (partial / layout.STATE).write_text(json.dumps(state, allow_nan=False) + "\n")
        names = tuple(sorted(entry.name for entry in partial.iterdir()))
        versions = {"python": platform.python_version(), "numpy": np.__version__, "stepkeeper": __version__}
        proof = Manifest(
            self._attempt.launch.job, name.attempt, name.step, time.time(), manifest.record(partial, names),
            {**versions, **self._files.versions}, self._files.topology, self._metrics,
        )  # fmt: skip
        durable.write_file(partial / layout.MANIFEST, proof.to_bytes())
        if self._opened is not None:
            self._opened.lock.check()
        durable.commit_folder(partial, self._directory / str(name), names)
        return proof.size_bytes

    def _take_back(self, name: CheckpointName) -> None:
        shutil.rmtree(self._directory / name.partial, ignore_errors=True)
        with contextlib.suppress(OSError):  # renamed, but not known to be on the disk
            checkpoints.delete(self._directory, name)

    def _retain(self) -> None:
        kept = []
        try:
            for name in checkpoints.committed(self._directory):
                with contextlib.suppress(ManifestError):  # a damaged one is evidence, and not ours to delete
                    found = manifest.read(self._directory / str(name))
                    kept.append(Kept(name, found.created_wall_at, found.metrics))
            for name in retention.expendable(kept, self._attempt.launch.retention):
                checkpoints.delete(self._directory, name)
        except OSError as error:
            sys.stderr.write(f"stepkeeper: cannot delete old checkpoints in {self._directory}: {error}\n")
