"""TensorBoard summaries that go on over restarts: every step once, whatever was killed in between.

Each attempt has a file of its own, whose first record says from which step on it counts: TensorBoard then drops what
earlier attempts wrote of later steps, which are trained again. Restarts and saves are marked.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.protocol.messages import Committed, FromWorker, Progress, Restored
from worker.process.reporting import Reporter
from worker.progress.event_file import EventFile

EventWrite = Callable[[EventFile], None]
SUMMARY_EVERY = 10  # steps; a summary waits for its step's figures, and TensorBoard shows a thousand points of a curve
TAG_PREFIX = "stepkeeper"  # beginning of the tags that no script chose


class TensorBoardWriter:
    """Writes what happens in a run, for those who look at TensorBoard.

    It stands between the run and whoever is told of restores and commits. A disk that can't take a summary costs
    summaries, and not the training.
    """

    def __init__(self, folder: Path, reporter: Reporter, every: int = SUMMARY_EVERY) -> None:
        """Writes into `folder` for each step that is a multiple of `every`. Raises ValueError."""
        if every < 1:
            raise ValueError(f"cannot write a summary every {every} steps; use 1 or more")
        self._folder = folder
        self._every = every
        self._reporter = reporter
        self._file: EventFile | None = None
        self._last_step = 0
        self._previous: tuple[int, float] | None = None

    def is_due(self, step: int) -> bool:
        """Whether a summary of this step is wanted. Ask once for each that the loop counts, which may be every few."""
        due = self._file is not None and step // self._every > self._last_step // self._every
        self._last_step = step
        return due

    def write_step(
        self,
        step: int,
        metrics: Mapping[str, float],
        by_replica: Mapping[str, tuple[float, ...]],
        stalled_s: float = 0.0,
        rows: int | None = None,
    ) -> None:
        """The figures of one step. `stalled_s`: for how long training stood still for saves, in all; `rows`: how many
        examples a step takes."""
        now, before = time.monotonic() - stalled_s, self._previous
        self._previous = step, now
        values = dict(metrics)
        for name, figures in by_replica.items():
            values |= {f"{name}/replica-{number}": figure for number, figure in enumerate(figures)}
        if before is not None and now > before[1]:
            per_s = (step - before[0]) / (now - before[1])
            values[f"{TAG_PREFIX}/steps_per_s"] = per_s
            if rows is not None:
                values[f"{TAG_PREFIX}/examples_per_s"] = per_s * rows
        self._write(lambda file: file.write_scalars(step, values))

    def send_message(self, message: FromWorker) -> None:
        """Passes it on, and marks restarts and saves."""
        if isinstance(message, Restored):
            self._mark_restart(message)
        elif isinstance(message, Committed) and message.ago_s is None:
            self._mark_save(message)
        self._reporter.send_message(message)

    def send_progress(self, message: Progress) -> None:
        """Passes it on."""
        self._reporter.send_progress(message)

    def show_message(self, text: str) -> None:
        """Passes it on."""
        self._reporter.show_message(text)

    def drain(self, timeout: float) -> bool:
        """Passes it on."""
        return self._reporter.drain(timeout)

    def close(self) -> Reporter:
        """Nothing more is written; gives back whom it stood before."""
        self._write(EventFile.sync)
        self._write(EventFile.close)
        return self._reporter

    def _mark_restart(self, restored: Restored) -> None:
        attempt, step = restored.attempt, restored.step
        self._last_step = step
        try:
            self._file = EventFile(self._folder, attempt)
        except OSError as error:
            self._reporter.show_message(f"writes no summaries for TensorBoard: {error}")
            return
        came_from = f"goes on from {restored.checkpoint}" if restored.checkpoint else "begins"
        self._write(lambda file: file.write_session_start(step + 1))
        self._write(
            lambda file: file.write_text(
                step, f"{TAG_PREFIX}/restarts", f"attempt {attempt} {came_from} at step {step}"
            )
        )
        self._write(lambda file: file.write_scalars(step, {f"{TAG_PREFIX}/attempt": attempt}))

    def _mark_save(self, saved: Committed) -> None:
        values = {"save_s": saved.save_s, "save_stall_s": saved.stall_s, "save_mb": saved.size_bytes / 1e6}
        self._write(
            lambda file: file.write_scalars(saved.step, {f"{TAG_PREFIX}/{name}": each for name, each in values.items()})
        )
        self._write(EventFile.sync)

    def _write(self, act: EventWrite) -> None:
        file = self._file  # the thread beside this one may take it away
        if file is None:
            return
        try:
            act(file)
        except OSError as error:
            self._file = None
            self._reporter.show_message(f"writes no more summaries for TensorBoard: {error}")
            with contextlib.suppress(OSError):
                file.close()
