"""Exports a trained model as a SavedModel: written under another name, then renamed, with a record of its files.

An export is for serving. It contains no optimizer, data position or random state, so training continues only from
checkpoints. TensorFlow Serving watches for `DIRECTORY/STEP/`; an incomplete export has another name.
"""

import ctypes
import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from supervisor.protocol import durable
from supervisor.protocol.formats import NewerFormat, check_format
from supervisor.protocol.layout import PARTIAL
from supervisor.protocol.plurals import counted
from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Exported
from worker.checkpoint.restore import outermost
from worker.process.attempt import Attempt
from worker.process.reporting import describe_error
from worker.process.startup import current_attempt
from worker.state import extra_state

RECORD = "EXPORT.json"
FORMAT = 1
REPLACED = f".replaced{PARTIAL}"


class ExportError(Exception):
    """An export can't be written or is damaged; the text says why and what to do."""


def export(model: Any, directory: str | Path, step: int) -> Path:
    """Writes `model` to DIRECTORY/STEP and returns that path. Replaces an earlier export of the same step.

    `model`: a built Keras model, whose `serve` endpoint takes the model's inputs, or a tf.Module with signatures of its
    own. Call it between steps. Raises ExportError; then nothing incomplete is at that path.
    """
    final = Path(directory) / str(step)
    partial = final.with_name(final.name + PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        durable.make_folder(partial.parent)
        _save(model, partial)
        durable.write_file(partial / RECORD, _record(partial, step))
        _sync_folders(partial)
        _put_in_place(partial, final)
    except Exception as error:  # the model's code is traced and may raise anything
        shutil.rmtree(partial, ignore_errors=True)
        raise ExportError(
            f"cannot export step {step} to {final}: {describe_error(error)}; the checkpoints are not affected"
        ) from error
    return final


def export_run(tracked: tf.train.Checkpoint, directory: Path, step: int) -> Path:
    """Exports the model that a run trains, as it is now. Raises ExportError, also unless it tracks exactly one."""
    models = outermost(extra_state.tracked_objects(tracked, tf.keras.Model))
    if len(models) != 1:
        raise ExportError(
            f"cannot export to {directory}: the run tracks {counted(len(models), 'model')}, but export_dir needs "
            f"exactly one; remove export_dir and call worker.export.export for each model"
        )
    return export(models[0], directory, step)


def verify(folder: Path) -> Mapping[str, Any]:
    """Compares every file of an export with its record and returns the record. Raises ExportError."""
    try:
        record: Mapping[str, Any] = json.loads(durable.read_file(folder / RECORD, 16 << 20))
        check_format(record, FORMAT, RECORD)
        for name, (size, digest) in record["files"].items():
            if durable.hash_file(folder / name) != (size, digest):
                raise ExportError(
                    f"cannot use the export {folder}: {name} has changed since it was written; export it again"
                )
    except NewerFormat as error:
        raise ExportError(f"cannot use the export {folder}: {error}") from error
    except OSError as error:
        raise ExportError(
            f"cannot read the export {folder}: {error.filename}: {error.strerror}; export it again"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExportError(
            f"cannot use the export {folder}: {RECORD} is not the record of an export; export it again"
        ) from error
    return record


def _save(model: Any, folder: Path) -> None:
    if isinstance(model, tf.keras.Model):
        model.export(str(folder), verbose=False)
    else:
        tf.saved_model.save(model, str(folder))


def _record(folder: Path, step: int) -> bytes:
    present = current_attempt()
    files = {name: durable.hash_file(folder / name) for name in _files(folder)}
    body = {
        "format": FORMAT,
        "job": present.launch.job,
        "attempt": present.number,
        "step": step,
        "created_wall_at": time.time(),
        "versions": {"tensorflow": tf.__version__, "keras": tf.keras.__version__},
        "files": files,
    }
    return (json.dumps(body, indent=1) + "\n").encode()


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _sync_folders(folder: Path) -> None:
    for name in _files(folder):
        durable.sync_file(folder / name)
    for where, _, _ in os.walk(folder, topdown=False):
        durable.sync_folder(Path(where))


def _exchange(one: Path, other: Path) -> None:
    """Exchanges two names atomically. Raises OSError, also if the file system can't do that (NFS)."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:  # the C library does not have it
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    if call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


_HERE, _EXCHANGE = -100, 2  # AT_FDCWD of fcntl.h, RENAME_EXCHANGE of linux/fs.h


def _put_in_place(partial: Path, final: Path, exchange: Callable[[Path, Path], None] = _exchange) -> None:
    """Moves the export to `final`. An earlier one stays there until then, if the file system can exchange names."""
    old = final.with_name(final.name + REPLACED)
    if not final.exists():
        partial.rename(final)
    else:
        try:
            exchange(partial, final)
        except OSError:
            shutil.rmtree(old, ignore_errors=True)
            final.rename(old)
            try:
                partial.rename(final)
            except OSError:
                old.rename(final)
                raise
    durable.sync_folder(final.parent)
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


class RunExports:
    """Exports the model of one run. Called between two steps, on the thread that trains."""

    def __init__(self, attempt: Attempt, tracked: tf.train.Checkpoint, *, is_chief: bool) -> None:
        """`is_chief`: of processes that train together, only this one exports."""
        self._attempt = attempt
        self._tracked = tracked
        self._is_chief = is_chief

    def serve(self, step: int) -> None:
        """Answers all requested exports with one export."""
        waiting = self._attempt.requests.pending_exports
        path = error = None
        while waiting:
            if path is None and error is None:
                path, error = self._try_to_export(step)
            self._attempt.reporter.send_message(Exported(self._attempt.number, waiting.popleft(), step, path, error))

    def _try_to_export(self, step: int) -> tuple[str | None, str | None]:
        """The export's path, or why there is none."""
        if self._folder is None:
            return None, "cannot export: the job has no export_dir"
        if not self._is_chief:
            return None, "cannot export from this worker: the chief worker exports; ask its daemon"
        try:
            return str(export_run(self._tracked, self._folder, step)), None
        except ExportError as error:
            return None, str(error)

    def export_trained(self, step: int) -> None:
        """Exports the trained model, if the job has an export_dir. Exits with SAVE_FAILED if that fails."""
        if self._folder is None or not self._is_chief:
            return
        try:
            export_run(self._tracked, self._folder, step)
        except ExportError as error:
            self._attempt.exit_with_error(WorkerExit.SAVE_FAILED, f"training is complete, but {error}", step)

    @property
    def _folder(self) -> Path | None:
        return self._attempt.launch.export_dir
