"""One save, from the captured state to the report of its outcome, on the training thread or beside it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.wire.limits import TEN_YEARS_S
from supervisor.protocol.wire.messages import Committed, SaveFailed
from worker.process.reporting import Reporter, describe_error, print_message
from worker.saving.commit import SaveError
from worker.saving.directory_lock import AttemptSuperseded


class CapturedState(Protocol):
    """The state of one step boundary."""

    @property
    def name(self) -> CheckpointName:
        """The checkpoint that it becomes."""

    @property
    def is_copy(self) -> bool:
        """Whether training may go on while it is written."""


T = TypeVar("T", bound=CapturedState)
Boundary_contra = TypeVar("Boundary_contra", contravariant=True)


class CheckpointWriter(Protocol[Boundary_contra, T]):
    """Turns the state of a program into checkpoints."""

    def capture(self, boundary: Boundary_contra, copied: bool) -> T:
        """The present state; `copied`: as a copy, so that training can go on meanwhile. Raises SaveError."""

    def commit(self, captured: T) -> Manifest:
        """Writes and commits it, on any thread. Raises SaveError; AttemptSuperseded."""

    def tidy_up(self, newest: CheckpointName) -> None:
        """Applies retention after `newest` was committed. Reports errors and raises none."""


class BlockingSaveNotice:
    """Explains, once, why training waits while checkpoints are written."""

    def __init__(self) -> None:
        self._was_shown = False

    def explain_once(self, why: str) -> None:
        """Prints the reason, unless one was printed before."""
        if not self._was_shown:
            self._was_shown = True
            print_message(f"training waits while checkpoints are written: {why}")

    def explain_memory(self, error: MemoryError) -> None:
        """Explains that there was no memory for a copy."""
        self.explain_once(f"there is no memory for a copy of the state: {describe_error(error)}")


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The checkpoint that holds the newest saved step: written by this run, or the one it was restored from.

    `save_s`: how long its save took; 0 for one that was restored. `committed_at`: monotonic.
    """

    step: int
    name: str
    size_bytes: int
    save_s: float = 0.0
    committed_at: float = field(default_factory=time.monotonic)

    @property
    def age_s(self) -> float:
        """How long ago it was committed."""
        return min(time.monotonic() - self.committed_at, TEN_YEARS_S)

    def answer_to(self, flushes: tuple[int, ...], attempt: int, stall_s: float) -> Committed:
        """What the daemon is told if nothing has to be saved for these flushes, as this holds their step already."""
        return Committed(
            attempt, self.step, self.name, self.size_bytes, self.save_s, stall_s, flushes=flushes, ago_s=self.age_s
        )


def restored_checkpoint(step: int, name: str, size_bytes: int, created_wall_at: float) -> LastCheckpoint:
    """The one that a run was restored from, which its manifest says was made at `created_wall_at`."""
    age_s = max(0.0, time.time() - created_wall_at)
    return LastCheckpoint(step, name, size_bytes, committed_at=time.monotonic() - age_s)


class CheckpointSave(Generic[T]):
    """The save of one captured state: `write_and_report` commits it and reports the outcome to the daemon at once."""

    def __init__(
        self,
        writer: CheckpointWriter[Any, T],
        captured: T,
        reporter: Reporter,
        flushes: tuple[int, ...],
        decided_at: float,
        stall_s: float,
        blocked_since: float | None,
        left_out: tuple[str, ...] = (),
        remember: Callable[[str, int], None] | None = None,
        keep_cached: Callable[[str, int], None] | None = None,
    ) -> None:
        """`decided_at`: monotonic. `stall_s`: how long training has waited so far; `blocked_since`: since when it
        waits now, None if it goes on. `left_out`: state that this checkpoint does not hold, for the daemon's report.
        `remember`: called with name and step once it is committed. `keep_cached`: called at the end, with name and
        size.
        """
        self.step = captured.name.step
        self._attempt = captured.name.attempt
        self._writer = writer
        self._captured = [captured]  # emptied when it is written, so that nothing holds the copy longer than needed
        self._reporter = reporter
        self._flushes = flushes
        self.began_at = self._decided_at = decided_at
        self.stall_s = stall_s
        """How long training waited for it; final once `write_and_report` has returned."""
        self.save_s = 0.0
        """From the decision to the last sync, once `write_and_report` has returned."""
        self.left_out = left_out
        self._remember = remember
        self._keep_cached = keep_cached
        self._blocked_since = blocked_since
        self._reported = False
        self._lock = threading.Lock()  # of what both threads touch: flushes, blocked since, reported

    def write_and_report(self) -> LastCheckpoint | SaveError:
        """Commits, reports, applies retention. Returns a SaveError.

        Another exception, a defect of the program, is reported and passes through; so does AttemptSuperseded, which is
        reported when the process exits."""
        captured = self._captured.pop()
        try:
            committed = self._writer.commit(captured)
        except SaveError as error:
            self._report_outcome(error)
            return error
        except AttemptSuperseded:
            raise
        except Exception as error:
            self._report_outcome(
                SaveError(f"cannot save {captured.name}: {describe_error(error)}; earlier checkpoints are untouched")
            )
            raise
        del captured  # frees the copy of the state: retention may take long
        last = LastCheckpoint(committed.step, str(committed.name), committed.size_bytes)
        if self._remember is not None:
            self._remember(last.name, last.step)
        self._report_outcome(last)
        self._writer.tidy_up(committed.name)
        if self._keep_cached is not None:
            self._keep_cached(last.name, last.size_bytes)
        return replace(last, save_s=self.save_s)

    def add_flushes(self, flushes: tuple[int, ...]) -> bool:
        """Has this save answer these flushes too; False if it has reported already."""
        with self._lock:
            if not self._reported:
                self._flushes += flushes
            return not self._reported

    def mark_training_blocked(self, now: float) -> None:
        """Training waits for this save from now on."""
        with self._lock:
            self._blocked_since = now

    def _report_outcome(self, outcome: LastCheckpoint | SaveError) -> None:
        now = time.monotonic()
        with self._lock:
            self._reported = True
            self.stall_s += 0.0 if self._blocked_since is None else now - self._blocked_since
        self.save_s = now - self._decided_at
        if isinstance(outcome, SaveError):
            self._reporter.send_message(SaveFailed(self._attempt, self.step, str(outcome), self._flushes))
            return
        self._reporter.send_message(
            Committed(
                self._attempt,
                self.step,
                outcome.name,
                outcome.size_bytes,
                self.save_s,
                stall_s=self.stall_s,
                flushes=self._flushes,
                left_out=self.left_out,
            )
        )
