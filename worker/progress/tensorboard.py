"""TensorBoard summaries that continue over restarts: each step appears once, however often the job was killed.

Each attempt writes its own file. The first record says from which step on it counts, so TensorBoard drops what earlier
attempts wrote of steps that are trained again. Restarts and saves are marked.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from supervisor.protocol.wire.messages import Committed, FromWorker, Progress, Restored
from worker.process.reporting import Reporter
from worker.progress.event_file import EventFile

EventWrite = Callable[[EventFile], None]
SUMMARY_EVERY = 10  # steps; a summary waits for its step's metrics, and TensorBoard shows a thousand points of a curve
TAG_PREFIX = "stepkeeper"  # of the tags that do not come from the script


class TensorBoardWriter:
    """Writes a run's metrics, restarts and saves for TensorBoard.

    It is a reporter that passes everything on to the real one. If the disk fails, the summaries end and training
    continues.
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
        """Whether a summary of this step is due. Call it for each step that the loop reports, in order."""
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
        """Writes the metrics of one step.

        `stalled_s`: for how long saves and replays have stopped training. `rows`: the number of examples in a step.
        """
        now, previous = time.monotonic() - stalled_s, self._previous
        self._previous = step, now
        values = dict(metrics)
        for name, replicas in by_replica.items():
            values |= {f"{name}/replica-{number}": value for number, value in enumerate(replicas)}
        if previous is not None and now > previous[1]:
            per_s = (step - previous[0]) / (now - previous[1])
            values[f"{TAG_PREFIX}/steps_per_s"] = per_s
            if rows is not None:
                values[f"{TAG_PREFIX}/examples_per_s"] = per_s * rows
        self._write(lambda file: file.write_scalars(step, values))

    def send_message(self, message: FromWorker) -> None:
        """Passes the message on; marks restarts and saves."""
        if isinstance(message, Restored):
            self._mark_restart(message)
        elif isinstance(message, Committed) and message.ago_s is None:
            self._mark_save(message)
        self._reporter.send_message(message)

    def send_progress(self, message: Progress) -> None:
        """Passes it on to the real reporter."""
        self._reporter.send_progress(message)

    def show_message(self, text: str) -> None:
        """Passes it on to the real reporter."""
        self._reporter.show_message(text)

    def drain(self, timeout: float) -> bool:
        """Passes it on to the real reporter."""
        return self._reporter.drain(timeout)

    def close(self) -> Reporter:
        """Ends the summaries. Returns the real reporter."""
        self._write(EventFile.sync)
        self._write(EventFile.close)
        return self._reporter

    def _mark_restart(self, restored: Restored) -> None:
        attempt, step = restored.attempt, restored.step
        self._last_step = step
        try:
            self._file = EventFile(self._folder, attempt)
        except OSError as error:
            self._reporter.show_message(f"cannot write summaries for TensorBoard: {error}; training continues")
            return
        origin = f"continues from {restored.checkpoint}" if restored.checkpoint else "begins"
        self._write(lambda file: file.write_session_start(step + 1))
        self._write(
            lambda file: file.write_text(step, f"{TAG_PREFIX}/restarts", f"attempt {attempt} {origin} at step {step}")
        )
        self._write(lambda file: file.write_scalars(step, {f"{TAG_PREFIX}/attempt": attempt}))

    def _mark_save(self, saved: Committed) -> None:
        values = {"save_s": saved.save_s, "save_stall_s": saved.stall_s, "save_mb": saved.size_bytes / 2**20}
        self._write(
            lambda file: file.write_scalars(
                saved.step, {f"{TAG_PREFIX}/{name}": value for name, value in values.items()}
            )
        )
        self._write(EventFile.sync)

    def _write(self, act: EventWrite) -> None:
        file = self._file  # another thread may close it meanwhile
        if file is None:
            return
        try:
            act(file)
        except OSError as error:
            self._file = None
            self._reporter.show_message(f"cannot write more summaries for TensorBoard: {error}; training continues")
            with contextlib.suppress(OSError):
                file.close()
