"""What a run tells the daemon of its progress, at most ten times a second."""

import time
from collections.abc import Callable
from dataclasses import replace

from supervisor.protocol.wire.messages import Progress
from worker.process.attempt import Attempt

PROGRESS_INTERVAL_S = 0.1  # between two progress messages; each one waits for the step's metrics


class ProgressReports:
    """The reports of one run. `send`'s `describe` makes the message of the seconds that a step takes, None if that is
    not known yet; it reads the metrics, so it is called only if there is something to send."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._sent_at: float | None = None  # monotonic, without the time that saves and replays took
        self._sent_step = 0
        self._last: Progress | None = None
        self._alive_at = 0.0

    @property
    def step_s(self) -> float | None:
        """How long a step took by the last report; None if that is not known."""
        return None if self._last is None else self._last.step_s

    def send(self, step: int, paused_s: float, describe: Callable[[float | None], Progress], *, is_last: bool) -> bool:
        """Reports a step. Returns whether it did. `paused_s`: how long saves and replays have stopped training so far,
        which does not count as a step's time."""
        now = time.monotonic() - paused_s
        elapsed_s = None if self._sent_at is None else now - self._sent_at
        if elapsed_s is not None and elapsed_s < PROGRESS_INTERVAL_S and not is_last:
            return False
        step_s = None if elapsed_s is None else elapsed_s / (step - self._sent_step)
        self._sent_at, self._sent_step = now, step
        self._last = describe(step_s)
        self._attempt.reporter.send_progress(self._last)
        return True

    def send_section(
        self, section: str | None, pop_data_wait_s: Callable[[], float | None], saving_s: float | None
    ) -> None:
        """Reports what the loop does from now on. Does nothing before the first report of progress."""
        if self._last is not None:
            self._last = replace(self._last, section=section, data_s=pop_data_wait_s(), saving_s=saving_s)
            self._attempt.reporter.send_progress(self._last)

    def is_alive_due(self) -> bool:
        """Whether it is time to report again that the loop is alive, although no step is new."""
        now = time.monotonic()
        is_due = now - self._alive_at >= PROGRESS_INTERVAL_S
        if is_due:
            self._alive_at = now
        return is_due
