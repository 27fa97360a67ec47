"""The exports of one run: those that were requested while it trains, and the one at its end."""

from pathlib import Path

import tensorflow as tf

from supervisor.protocol.wire.exits import WorkerExit
from supervisor.protocol.wire.messages import Exported
from worker.export import ExportError, export_run
from worker.process.attempt import Attempt


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
