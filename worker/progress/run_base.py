"""What every run has in common, whatever writes its checkpoints: steps counted and told, and the end."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from supervisor.protocol.messages import Progress
from worker.process.attempt import DRAIN_TIMEOUT_S, DeliberateExit
from worker.process.reporting import describe_error
from worker.process.signals import StopSignals
from worker.process.startup import current_attempt
from worker.progress.tensorboard import TensorBoardWriter

PROGRESS_INTERVAL_S = 0.1  # between two progress messages; each costs a wait for the step's figures


class RunBase:
    """The base of the runs. `step` optimizer steps are done, of `total_steps` (None: the loop's own affair)."""

    def __init__(self, total_steps: int | None, summaries: str | Path | None, summary_every: int) -> None:
        self.step = 0
        self.total_steps = None if total_steps is None else math.ceil(total_steps)  # NumPy's and 1e5 too
        self._attempt = current_attempt()
        self._stop = StopSignals(self._attempt.requests)
        self._tensorboard: TensorBoardWriter | None = None
        if summaries is not None:
            self._tensorboard = TensorBoardWriter(Path(summaries), self._attempt.reporter, summary_every)
            self._attempt.reporter = self._tensorboard
        self._reported_at: float | None = None  # monotonic, less the time that saves took
        self._reported_step = 0
        self._last_progress: Progress | None = None  # the last

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
            elif not isinstance(error, DeliberateExit):
                self._failed(error)
        except BaseException as later:
            self._end_run(later)
            raise
        self._end_run(error)

    def _end_run(self, why: BaseException | None) -> None:
        """`why`: what ends the run, which nothing that fails here may hide."""
        try:
            self._stop.remove()
            self._release()
        except (Exception, DeliberateExit) as error:
            if why is None:
                raise
            self._attempt.reporter.show_message(f"besides, the end of the run failed: {describe_error(error)}")
        finally:
            self._attempt.reporter.drain(DRAIN_TIMEOUT_S)
            self._close_tensorboard()

    @property
    def reached(self) -> bool:
        """Whether all steps are done."""
        return self.total_steps is not None and self.step >= self.total_steps

    @property
    def _saving_s(self) -> float | None:
        """For how long a save has been written beside training; None if none is."""
        return None

    def _pop_data_wait_s(self) -> float | None:
        """Seconds that data were waited for since the daemon was told; None where the script gets them elsewhere."""
        return None

    def _finish(self) -> None:
        """Training is complete."""
        raise NotImplementedError

    def _release(self) -> None:
        """Lets go of what the run held, however it ended."""
        raise NotImplementedError

    def _failed(self, error: BaseException) -> None:
        self._attempt.report_exception(error, self.step)

    def _close_tensorboard(self) -> None:
        if self._tensorboard is not None:
            self._attempt.reporter, self._tensorboard = self._tensorboard.close(), None

    def _report_progress(
        self,
        epoch: int,
        metrics: Callable[[], Mapping[str, float]],
        interval_s: float | None,
        stalled_s: float,
    ) -> bool:
        """Tells the daemon, at most ten times a second; whether it did. `stalled_s`: what saves cost so far, which is
        no step's time."""
        now = time.monotonic() - stalled_s
        since = None if self._reported_at is None else now - self._reported_at
        if since is not None and since < PROGRESS_INTERVAL_S and not self.reached:
            return False
        step_s = None if since is None else since / (self.step - self._reported_step)
        self._reported_at, self._reported_step = now, self.step
        self._last_progress = Progress(
            self._attempt.number,
            self.step,
            epoch,
            self.total_steps,
            step_s,
            metrics(),
            interval_s,
            data_s=self._pop_data_wait_s(),
            saving_s=self._saving_s,
        )
        self._attempt.reporter.send_progress(self._last_progress)
        return True

    def _report_section(self, section: str | None) -> None:
        """What the loop is at from now on; nothing before the first step, when the daemon knows it."""
        if self._last_progress is not None:
            saving_s = self._saving_s
            self._last_progress = replace(
                self._last_progress, section=section, data_s=self._pop_data_wait_s(), saving_s=saving_s
            )
            self._attempt.reporter.send_progress(self._last_progress)
