"""`worker.files.FilesRun`: a run whose program writes its own state files (PyTorch, TF1 sessions, NumPy arrays).

Needs no TensorFlow, and gives the guarantees of `worker.Run`: restores a verified checkpoint before the loop, commits
durably, saves when it is due or requested, answers the daemon, saves the data position and the random generators of
Python and NumPy.
"""

import json
import random
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

import numpy as np

from supervisor.protocol import durable, layout
from supervisor.protocol.checkpoints import manifest
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Restored
from worker.base.run_base import RunBase
from worker.base.run_settings import check_settings, require_names
from worker.checks.findings import Finding
from worker.checks.library_loops import refuse_call_in_block, refuse_loop_around
from worker.checks.loop_source import script_frame_of
from worker.checks.reachability import Root, find_unsaved_generators
from worker.checks.watch.kept.kept_values import Kept
from worker.checks.watch.kept.written_values import keep_written
from worker.devices import conditions
from worker.files.files_writer import FORMAT, CapturedFiles, Copying, Files, FilesBoundary, FilesWriter
from worker.process.reporting import describe_error
from worker.process.startup import current_attempt
from worker.progress.metrics import metric_values
from worker.progress.tensorboard import SUMMARY_EVERY
from worker.saving.commit import CheckpointOrigin, NotFinite, Retention
from worker.saving.directory import OpenedDirectory, Unfit, open_checkpoint_directory
from worker.saving.save import LastCheckpoint, restored_checkpoint
from worker.saving.scheduler import SaveScheduler
from worker.state import random_generators, run_state
from worker.state.description import differences
from worker.state.random_generators import GENERATORS
from worker.state.script_conditions import (
    OTHER_SCRIPT,
    Condition,
    ScriptConditions,
    parse_record,
    seeds_of_generators,
)
from worker.state.state_file import Position, parse_body
from worker.state.value_restorer import NotRestorable

__all__ = ["Copying", "Files", "FilesRun", "NotFinite", "Unfit", "prepare"]


SEED = 1


def prepare(seed: int = SEED) -> None:
    """Seeds Python's and NumPy's global generators. Call it before the program makes its state.

    NumPy's libraries for linear algebra read their number of threads, on which sums depend, when they are imported: set
    OMP_NUM_THREADS and OPENBLAS_NUM_THREADS in the job's `environment`.
    """
    random.seed(seed)
    np.random.seed(seed)


def _require_files(files: object) -> None:
    """Raises TypeError, naming what the object lacks."""
    if missing := [name for name in ("versions", "topology", "write", "read") if not hasattr(files, name)]:
        raise TypeError(
            f"cannot save the files of {type(files).__name__}: it has no {' and no '.join(missing)}; "
            f"help(worker.files.Files) says what they are"
        )


class FilesRun(RunBase):
    """One training run around a loop of the script's own, as a context manager.

    A stop leaves `step_done` as SystemExit with status 143, after the save. Training waits for each save, unless the
    files can be copied (`Copying`).
    """

    _public_name = "worker.files.FilesRun"

    def __init__(
        self,
        files: Files,
        *,
        total_steps: int | None = None,
        directory: str | Path | None = None,
        interval: str | None = None,
        summaries: str | Path | None = None,
        summary_every: int = SUMMARY_EVERY,
        state: Mapping[str, Any] | None = None,
        generators: Iterable[Any] = (),
        leave_out: Iterable[Any] = (),
        strict: bool = False,
        on_nan: str | None = None,
    ) -> None:
        """`directory` and `interval` (as "500 steps", or "auto") apply where the job's configuration says nothing.

        `summaries`: a folder for TensorBoard, which gets the metrics of each step that is a multiple of
        `summary_every`. `state`: initial values of `run.state`, which a restored checkpoint replaces. `generators`: the
        script's own numpy.random.Generator, numpy.random.RandomState and random.Random, always in the same order; the
        global ones are saved anyway. After the first step a warning names state that the loop can reach and no
        checkpoint would hold, except that of the objects in `leave_out`; with `strict` it is an error. `on_nan`: what
        to do when training diverges, as the key of that name, where the configuration doesn't say.
        """
        _require_files(files)
        launch = current_attempt().launch
        settings = check_settings(
            launch, total_steps=total_steps, directory=directory, interval=interval, generators=generators,
            leave_out=leave_out, strict=strict, on_nan=on_nan, state=state, summaries=summaries,
            summary_every=summary_every,
        )  # fmt: skip
        if settings.directory is None:
            raise ValueError("cannot save checkpoints: no directory; give the run a directory=, or set checkpoint_dir")
        super().__init__(settings)
        self._directory: Path = settings.directory
        self._files = files
        self._own_generators = random_generators.check_own_generators(settings.generators)
        self._checkpoints: SaveScheduler[FilesBoundary, CapturedFiles] = SaveScheduler(
            self._attempt,
            settings.interval,
            strict=settings.strict,
            not_finite=self._not_finite if self._on_nan != "off" else None,
        )
        self._script = ScriptConditions({})
        self._data: dict[str, Any] | None = None  # a description of what the run reads; None: the run can't tell
        self._data_before: dict[str, Any] = {}
        self._restored: Restored | None = None

    @property
    def examples(self) -> int | None:
        """How many examples of the epoch are consumed, which matters if the batch size changes; None: the script
        doesn't say."""
        self._end_head()
        return self._position.examples

    def __enter__(self) -> Self:
        refuse_call_in_block(script_frame_of(sys._getframe(1)))
        self._enter()
        self._script = ScriptConditions(self._read_script())
        opened = open_checkpoint_directory(self._attempt, self._directory)
        started = time.monotonic()
        last = None if opened.restore is None else self._restore_or_exit(opened.restore, opened)
        took_s = time.monotonic() - started
        versions, topology = self._conditions()
        changed = conditions.report_changed_conditions(
            {**versions, **topology}, opened.directory, opened.restore, self._attempt.reporter.show_message
        )
        if other := self._script.said:
            self._attempt.reporter.show_message(f"{OTHER_SCRIPT}: {'; '.join(other)}")
        launch = self._attempt.launch
        retention = Retention(opened.directory, launch.retention, launch.checkpoint_make_room, opened.restored_here)
        origin = CheckpointOrigin(launch.job, self._attempt.number, versions, topology)
        writer = FilesWriter(self._files, opened.directory, origin, retention, opened.lock.check_not_superseded)
        is_own = opened.restore is not None and opened.restore.parent == self._directory and opened.restore.is_dir()
        self._checkpoints.begin(opened, writer, self.step, last if is_own else None)
        self._attempt.requests.step = self.step
        name = opened.restore.name if opened.restore is not None else None
        self._restored = Restored(
            self._attempt.number, self.step, name, took_s, self.total_steps, changed=(*changed, *other)
        )
        self._attempt.reporter.send_message(self._restored)
        self._changed = changed
        self._begin()
        return self

    def _restore_or_exit(self, path: Path, opened: OpenedDirectory) -> LastCheckpoint | None:
        self._attempt.report_restoring(path)
        try:
            return self._restore(path)
        except BaseException as error:
            opened.lock.release()
            if isinstance(error, Unfit):
                self._attempt.exit_with_error(WorkerExit.CHECKPOINT_UNFIT, f"cannot restore {path}: {error}")
            raise

    def _read_script(self) -> dict[str, Condition]:
        """The present conditions that the script sets; before the restore, what it made."""
        return dict(seeds_of_generators(self._own_generators))

    def _check_first_step(self, frame: FrameType) -> None:
        """Says too if training continues with values that the script has set after the restore."""
        self._check_complete(frame)
        data = differences(self._data_before, self._data or {})
        if data:
            self._attempt.reporter.show_message(f"training continues on other data than before: {'; '.join(data)}")
        is_updated = self._script.has_differences and self._script.update(self._read_script())
        if self._restored is not None and (data or is_updated) and self._attempt.channel is not None:
            changed = (*self._changed, *self._script.said, *data)
            self._attempt.channel.send_message(replace(self._restored, changed=changed))

    def _conditions(self) -> tuple[dict[str, str], dict[str, str | int | bool]]:
        """The conditions on which the results depend: those of every program, and those that this program names."""
        versions = {"numpy": np.__version__, **conditions.base_versions(), **self._files.versions}
        topology = {"processor": conditions.processor(), "cores": conditions.cores(), **self._files.topology}
        if self._attempt.launch.deterministic and topology.get("deterministic") is False:
            self._attempt.reporter.show_message(
                f"the job sets deterministic, but the script does not ensure it; call prepare() of "
                f"{type(self).__module__} before it builds anything"
            )
        return versions, topology

    def step_done(
        self,
        *unnamed: Any,
        epoch: int | None = None,
        batch: int | None = None,
        examples: int | None = None,
        **metrics: Any,
    ) -> None:
        """One step is complete. Saves if it is due or requested, and may exit.

        A program that reads its data itself says where to go on: the next batch is `batch` of `epoch`, of which
        `examples` are consumed. In loops over `range`, `order` and `epochs` the run knows.
        `metrics`: numbers, NumPy's too; those that are not finite, and those beyond the first hundred, are left out of
        messages and manifests. Raises TypeError for one of `epoch` and `batch` without the other.
        """
        if (epoch is None) != (batch is None):
            raise TypeError("cannot tell where to go on; give run.step_done both epoch= and batch=, or none of them")
        place = None
        if epoch is not None and batch is not None:  # the numbers may be NumPy's, which are not JSON's
            place = Position(int(epoch), int(batch), None if examples is None else int(examples))
        self._complete_step(sys._getframe(1), unnamed, metrics, place)

    def _complete_step(
        self, frame: FrameType, unnamed: tuple[Any, ...], metrics: Mapping[str, Any], place: Position | None = None
    ) -> None:
        """See `step_done`, which `frame` has called. `place`: the position behind this step, if the script knows better
        than the run."""
        require_names(unnamed)
        self._require_with("run.step_done")
        values = {name: float(value) for name, value in metrics.items()}
        if self._is_replaying:
            self._count_replayed_step(metric_values(values))
            return
        if place is None:
            self._count_step()
        else:
            self.step, self._numbered = self.step + 1, True
            self._position, self._consumed = place, None
        self._record_for_divergence(values)
        self._check_divergence()
        self._metrics = metric_values(values)
        self._end_step(frame, metrics)

    def _step_boundary(self) -> FilesBoundary:
        data = self._data_before if self._data is None else self._data
        script = self._script.to_json()
        return FilesBoundary(
            self.step, self._position, self._metrics, self.state, self._own_generators, script, data, self._body
        )

    def _check_complete(self, frame: FrameType) -> None:
        """Looks for state that the loop in `frame` uses and no checkpoint would hold."""
        refuse_loop_around(frame)
        self.state.check()
        roots = self._loop_checks.roots(frame)
        missing: tuple[str, ...] = ()
        findings: Sequence[Finding] = ()
        try:
            missing, findings = self._find_missing(roots)
            findings = [*findings, *self._find_lost_values(frame)]
        except Exception as error:  # noqa: BLE001 - it inspects objects of every kind, and must not end training
            missing = (f"some state, perhaps: the search for it failed with {describe_error(error)}",)
        self._checkpoints.report_findings(findings, self.step, missing, self._remedy)

    def _keep(self, kept: Kept) -> None:
        super()._keep(kept)
        writers = (getattr(self._files, name, None) for name in ("write", "copied"))
        keep_written(kept, writers, getattr(self._files, "read", None))

    _remedy = "give generators to generators=[...], or to leave_out=[...] what need not come back"

    def _find_missing(self, roots: list[Root]) -> tuple[tuple[str, ...], Sequence[Finding]]:
        """State that no checkpoint would hold, and what else would not come back: what this kind of run can tell.

        The program's own state is in its files; nobody but the program knows whether all of it.
        """
        kept = Kept()
        self._keep(kept)
        written = [value for value in kept.alive if isinstance(value, GENERATORS)]
        saved = (*self._own_generators, *self.state.generators(), *written)
        return find_unsaved_generators(roots, saved, self._leave_out), ()

    def _restore(self, path: Path) -> LastCheckpoint | None:
        """Restores from a stepkeeper checkpoint's folder, which it returns, or from the prefix of another program's."""
        if not path.is_dir():
            self.step = self._files.read_foreign(path)
            return None
        try:
            saved = json.loads(durable.read_file(path / layout.STATE, 64 << 20))
            if saved.get("format") != FORMAT or saved.get("kind") != type(self._files).__name__:
                whose = saved.get("kind", "TensorFlow objects")
                raise Unfit(f"it is a checkpoint of {whose}; give this program a checkpoint_dir of its own")
            self._files.read(path)
            random_generators.write(saved["generators"], self._own_generators)
            run_state.restore_from(path, self.state)
            self.step = saved["step"]
            position = Position(saved["epoch"], saved["batch"], saved["examples"], begun=saved["begun"])
            self._continue_at(position, parse_body(saved.get("body")))
            self._metrics = saved["metrics"]
            self._data_before = dict(saved.get("data", {}))
            self._script.compare(parse_record(saved.get("script")), self._read_script(), self.step)
            whole = manifest.read_manifest(path)
            return restored_checkpoint(self.step, path.name, whole.size_bytes, whole.created_wall_at)
        except FileNotFoundError as error:
            if not (path / layout.MANIFEST).exists():
                raise  # somebody deleted it since it was proven: the next attempt gets another one
            raise Unfit(describe_error(error)) from error  # another program's has other files
        except NotRestorable as error:
            raise Unfit(str(error)) from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise Unfit(describe_error(error)) from error
