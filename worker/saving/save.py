"""One save, from its decision to its answer, on the thread that trains or beside it."""

import threading
import time
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from supervisor.protocol.checkpoints.manifest import Manifest
from supervisor.protocol.layout import CheckpointName
from supervisor.protocol.messages import Committed, SaveFailed
from worker.process.reporting import Reporter, describe_error, print_message
from worker.saving.commit import SaveError
from worker.saving.directory import AttemptSuperseded


class CapturedState(Protocol):
    """The state of one step boundary."""

    @property
    def name(self) -> CheckpointName:
        """The checkpoint that it becomes."""

    @property
    def is_copy(self) -> bool:
        """Whether training may go on while it is written."""


T = TypeVar("T", bound=CapturedState)
Known_contra = TypeVar("Known_contra", contravariant=True)


class CheckpointWriter(Protocol[Known_contra, T]):
    """Makes checkpoints of what it was given to keep."""

    def capture(self, figures: Known_contra, copied: bool) -> T:
        """The present state; `copied`: training is to go on while it is written. Raises SaveError."""

    def commit(self, taken: T) -> Manifest:
        """Commits it, on any thread. Raises SaveError; AttemptSuperseded."""

    def tidy_up(self, newest: CheckpointName) -> None:
        """Deletes what retention gives up; `newest` exists, whatever becomes of that."""


class BlockingSaveNotice:
    """Says why training waits while checkpoints are written: once, as it does not change often."""

    def __init__(self) -> None:
        self._is_said = False

    def explain_once(self, why: str) -> None:
        """On stderr, which the daemon keeps in the job's log."""
        if not self._is_said:
            self._is_said = True
            print_message(f"training stands still while checkpoints are written: {why}")

    def explain_memory(self, error: MemoryError) -> None:
        """There was none for a copy."""
        self.explain_once(f"as long as there is no memory for a copy: {describe_error(error)}")


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """The checkpoint that holds the newest saved step: written by this run, or the one it was restored from."""

    step: int
    name: str
    size_bytes: int


class CheckpointSave(Generic[T]):
    """`run` writes what was taken at one step boundary, and tells the daemon at once how that ended."""

    def __init__(
        self,
        writer: CheckpointWriter[Any, T],
        taken: T,
        reporter: Reporter,
        flushes: tuple[int, ...],
        decided_at: float,
        stall_s: float,
        waits_from: float | None,
        left_out: tuple[str, ...] = (),
    ) -> None:
        """`decided_at`: monotonic. `stall_s`: how long training stood still so far; `waits_from`: since when it does
        now, if it does.

        `left_out`: what the daemon is to know is not in this checkpoint.
        """
        self.step = taken.name.step
        self._attempt = taken.name.attempt
        self._writer = writer
        self._taken = [taken]  # emptied by `run`, so that nothing holds the copy longer than it must
        self._reporter = reporter
        self._flushes = flushes
        self.began_at = self._decided_at = decided_at
        self.stall_s = stall_s
        """For how long training stood still for it; final once `run` has returned."""
        self.save_s = 0.0
        """From the decision to the last sync, once `run` has returned."""
        self._left_out = left_out
        self._waiting_since = waits_from
        self._answered = False
        self._lock = threading.Lock()  # of what both threads touch: flushes, waiting, answered

    def write_and_report(self) -> LastCheckpoint | SaveError:
        """Writes, answers, tidies up. An error that is no SaveError, a defect of the program's, is answered and passes
        through; so does AttemptSuperseded, which ends all of this."""
        taken = self._taken.pop()
        try:
            committed = self._writer.commit(taken)
        except SaveError as error:
            self._report_outcome(error)
            return error
        except AttemptSuperseded:
            raise
        except Exception as error:
            self._report_outcome(
                SaveError(f"cannot save {taken.name}: {describe_error(error)}; earlier checkpoints are untouched")
            )
            raise
        del taken  # the copy of the state: retention may take long
        last = LastCheckpoint(committed.step, str(committed.name), committed.size_bytes)
        self._report_outcome(last)
        self._writer.tidy_up(committed.name)
        return last

    def add_flushes(self, flushes: tuple[int, ...]) -> bool:
        """Has this save answer these flushes too; False if it has answered already."""
        with self._lock:
            if not self._answered:
                self._flushes += flushes
            return not self._answered

    def mark_training_blocked(self, now: float) -> None:
        """Training stands still for this save from now on."""
        with self._lock:
            self._waiting_since = now

    def _report_outcome(self, outcome: LastCheckpoint | SaveError) -> None:
        now = time.monotonic()
        with self._lock:
            self._answered = True
            self.stall_s += 0.0 if self._waiting_since is None else now - self._waiting_since
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
                left_out=self._left_out,
            )
        )
