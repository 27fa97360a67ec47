"""A run whose state the program itself writes into files: PyTorch, TF1 sessions, NumPy arrays. Without TensorFlow.

The same guarantees as `worker.Run`: restores a proven checkpoint before the loop, commits durably, saves when due or
asked, answers the daemon, keeps the data position and the generators of Python and NumPy.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.exit_codes import WorkerExit
from supervisor.protocol.launch import parse_interval
from supervisor.protocol.messages import Done, Restored
from worker.files.writer import (
    FORMAT,
    Boundary,
    Copying,
    Files,
    FilesTaken,
    FilesWriter,
    Unfit,
)
from worker.process import attempt
from worker.progress.divergence import DivergenceWatch
from worker.progress.figures import metric_values
from worker.progress.run_base import RunBase
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.saving import conditions
from worker.saving.cadence import Cadence, auto_of
from worker.saving.directory import Opened, open_directory
from worker.saving.retention import Shelf
from worker.saving.save import (
    Last,
    NotFinite,
    Origin,
    SaveError,
)
from worker.saving.scheduler import Saves
from worker.state import random_generators

__all__ = ["Copying", "Files", "FilesRun", "NotFinite", "Unfit"]


class FilesRun(RunBase):
    """One training run around a loop of the script's own, as a context manager.

    A stop leaves `step_done` as SystemExit with status 143, after the save. Training stands still for a save, unless
    the files can be copied (`Copying`).
    """

    def __init__(
        self,
        files: Files,
        *,
        total_steps: int | None = None,
        directory: str | Path | None = None,
        interval: str | None = None,
        summaries: str | Path | None = None,
        summary_every: int = SUMMARY_EVERY,
    ) -> None:
        """`directory` and `interval` (as "500 steps", or "auto") hold where the job's configuration says nothing.

        `summaries`: a folder for TensorBoard, which gets the figures of each step that is a multiple of
        `summary_every`.
        """
        super().__init__(total_steps, summaries, summary_every)
        self.epoch = 0
        self.batch = 0
        """The data go on with this batch of that epoch, both from 0."""
        self.examples: int | None = 0
        """How many examples of the epoch are consumed, which counts where batches have another size than before; None:
        the script doesn't say."""
        self._files = files
        told = self._attempt.launch
        given = told.checkpoint_dir or (Path(directory).absolute() if directory is not None else None)
        if given is None:
            raise ValueError("cannot keep checkpoints: give the run a directory=, or the job a checkpoint_dir")
        self._directory = given
        wanted = told.checkpoint_interval or (parse_interval(interval) if interval not in (None, "auto") else None)
        self._saves = _FilesSaves(self._attempt, Cadence(wanted, 0, time.monotonic(), auto_of(told)))
        self._metrics: Mapping[str, float] = {}
        self._watch = DivergenceWatch(told.loss_spike)

    def __enter__(self) -> Self:
        opened = open_directory(self._attempt, self._directory)
        started = time.monotonic()
        last = None
        if opened.restore is not None:
            try:
                last = self._restore(opened.restore)
            except BaseException as error:
                opened.lock.release()
                if isinstance(error, Unfit):
                    self._attempt.give_up(WorkerExit.CHECKPOINT_UNFIT, f"cannot restore {opened.restore}: {error}")
                raise
        took_s = time.monotonic() - started
        versions, topology = self._conditions()
        changed = conditions.compare(
            {**versions, **topology}, opened.directory, opened.restore, self._attempt.reporter.remark
        )
        told = self._attempt.launch
        shelf = Shelf(opened.directory, told.retention, told.checkpoint_make_room)
        origin = Origin(told.job, self._attempt.number, versions, topology)
        writer = FilesWriter(self._files, opened.directory, origin, shelf, opened.lock.check)
        is_own = opened.restore is not None and opened.restore.parent == self._directory and opened.restore.is_dir()
        self._saves.begin(opened, writer, self.step, last if is_own else None)
        self._attempt.requests.step = self.step
        name = opened.restore.name if opened.restore is not None else None
        self._attempt.reporter.say(
            Restored(self._attempt.number, self.step, name, took_s, self.total_steps, changed=changed)
        )
        self._stop.install()
        return self

    def _release(self) -> None:
        self._saves.release()

    def _conditions(self) -> tuple[dict[str, str], dict[str, str | int | bool]]:
        """What the bits depend on, as the program says and as every program has it."""
        versions = {"numpy": np.__version__, **conditions.versions(), **self._files.versions}
        topology = {"processor": conditions.processor(), "cores": conditions.cores(), **self._files.topology}
        if self._attempt.launch.deterministic and topology.get("deterministic") is False:
            self._attempt.reporter.remark(
                f"the job is to be deterministic, but the script does not make it so; call prepare() of "
                f"{type(self).__module__} before it builds anything"
            )
        return versions, topology

    def step_done(self, *, epoch: int, batch: int, examples: int | None = None, **metrics: float) -> None:
        """One step is complete, and the data go on with `batch` of `epoch`, of which `examples` are consumed. Saves if
        it is time; may leave. `metrics`: numbers, NumPy's too; those that are not finite, and those beyond the first
        hundred, are left out of messages and manifests."""
        self.step, self.epoch, self.batch = self.step + 1, int(epoch), int(batch)  # NumPy's are not JSON's
        self.examples = None if examples is None else int(examples)
        self._look(metrics)
        self._metrics = metric_values({name: float(value) for name, value in metrics.items()})
        self._attempt.requests.step = self.step
        self._saves.stepped()
        if self._tensorboard is not None and self._tensorboard.is_due(self.step):
            self._tensorboard.write_step(self.step, self._metrics, {}, self._saves.stalled_s)
        self._report_progress(self.epoch, lambda: self._metrics, self._saves.interval_s, self._saves.stalled_s)
        saves = self._saves.may_save(self.step)
        if saves:
            self._report_section("save")
        self._saves.serve(self.step, self._boundary)
        if saves:
            self._report_section(None)

    @property
    def _saving_s(self) -> float | None:
        return self._saves.saving_s

    def _boundary(self) -> Boundary:
        return Boundary(self.step, self.epoch, self.batch, self.examples, self._metrics)

    def _look(self, metrics: Mapping[str, float]) -> None:
        """Leaves if training diverged. Which batches the loop takes is its own affair: `skip` only goes back."""
        on_nan = self._attempt.launch.on_nan
        if on_nan != "off":
            self._watch.record_step(self.step, metrics)
            trouble = self._watch.find_divergence()
            if trouble is not None:
                self._attempt.diverged(trouble.text, trouble.step, on_nan in ("rollback", "skip"))

    def _finish(self) -> None:
        self._saves.save_last(self._boundary())
        self._attempt.reporter.say(Done(self._attempt.number, self.step, self._metrics))

    def _restore(self, path: Path) -> Last | None:
        """From the folder of one of ours, or the prefix of another program's; the former as the last that was saved."""
        if not path.is_dir():
            self.step = self._files.read_foreign(path)
            return None
        try:
            found = json.loads(durable.read_file(path / layout.STATE, 64 << 20))
            if found.get("format") != FORMAT or found.get("kind") != type(self._files).__name__:
                whose = found.get("kind", "TensorFlow objects")
                raise Unfit(f"it is a checkpoint of {whose}; give this program a checkpoint_dir of its own")
            self._files.read(path)
            random_generators.write(found["generators"])
            self.step, self.epoch, self.batch = found["step"], found["epoch"], found["batch"]
            self.examples = found.get("examples")
            self._metrics = found["metrics"]
            return Last(self.step, path.name, manifest.read(path).size_bytes)
        except FileNotFoundError as error:
            if not (path / layout.MANIFEST).exists():
                raise  # somebody deleted it since it was proven: the next attempt gets another one
            raise Unfit(attempt.one_line(error)) from error  # another program's has other files
        except (ValueError, KeyError, TypeError) as error:
            raise Unfit(attempt.one_line(error)) from error


class _FilesSaves(Saves[Boundary, FilesTaken]):
    """Those of one run."""

    _is_over = False

    def release(self) -> None:
        self._is_over = True  # one way or another
        super().release()

    def _failed(self, step: int, error: SaveError) -> None:
        on_nan = self._attempt.launch.on_nan
        if isinstance(error, NotFinite) and on_nan != "off" and not self._is_over:
            self._attempt.diverged(str(error), step, on_nan in ("rollback", "skip"))

    def begin(self, opened: Opened, writer: FilesWriter, step: int, last: Last | None) -> None:
        """Training begins at `step`. `last`: the checkpoint in this directory that holds it already."""
        self._opened, self._writer, self._last = opened, writer, last
        self._cadence.begun(step, time.monotonic())
