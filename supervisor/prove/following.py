"""Follows one run while it goes on: reports its progress, and decides where the first one ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from supervisor.protocol.proof_plan import END, WorkerPlan
from supervisor.prove import plan
from supervisor.prove.outside import OutsideKiller
from supervisor.prove.plan import ProofOptions, TrainedSoFar
from supervisor.prove.record import RunRecord
from supervisor.prove.scratch import CannotProve, RunFolder
from supervisor.prove.session import Session

UNDISTURBED, KILLED, AGAIN = "undisturbed", "killed", "undisturbed again"
"""The runs of a proof; the last one only where the others differ."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a proof is. `of`: the step at which this run ends; None: that is not decided."""

    run: str
    step: int
    of: int | None
    state: str
    kills: int = 0
    planned: int = 0


Tell = Callable[[RunProgress], None]


class RunFollower:
    """Watches one run: reports its progress, and decides where the first one ends."""

    def __init__(
        self,
        tell: Tell,
        name: str,
        worker_plan: WorkerPlan,
        wanted: ProofOptions,
        folder: RunFolder,
        began_at: float,
        killer: OutsideKiller | None,
        expected: int | None,
    ) -> None:
        """`expected`: the last step, if it is known from another run."""
        self.end = worker_plan.end
        self._expected = expected
        self.first_step_s = 0.0
        self._tell, self._name, self._wanted, self._folder = tell, name, wanted, folder
        self._kills = worker_plan.kills
        self._decides = name == UNDISTURBED and self.end is None
        self._began_at = began_at
        self._killer = killer
        self._unrecorded_since: float | None = None

    def on_change(self, session: Session, status: dict[str, Any]) -> None:
        """Reports progress; writes the step at which training ends once that is decided."""
        if self._killer is not None:
            self._killer.on_status(status)
        record = session.reader.record() if self._killer is None else self._killer.record
        steps = record.steps
        self._require_record(record, status)
        if steps and not self.first_step_s:
            self.first_step_s = time.monotonic() - self._began_at
        if steps and self._decides and self.end is None:
            so_far = TrainedSoFar(record.last, steps[-1].at - steps[0].at, record.edges)
            if (end := plan.end_of_training(so_far, self._wanted)) is not None:
                self.end = end
                unnamed = self._folder.proof / f"{END}.new"
                unnamed.write_text(str(end))
                unnamed.rename(self._folder.proof / END)
        step = steps[-1].step if steps else 0
        state = "STARTING" if status["state"] == "STOPPED" else status["state"]
        known = self._expected or self.end
        of = step if state == "SUCCEEDED" else None if known is None else max(step, known)
        self._tell(RunProgress(self._name, step, of, state, len(record.killed), len(self._kills)))

    def _require_record(self, record: RunRecord, status: dict[str, Any]) -> None:
        """Raises CannotProve if a program trains for long that no plan can end."""
        if record.begun or self._killer is not None or status["state"] != "RUNNING":
            return
        self._unrecorded_since = self._unrecorded_since or time.monotonic()
        if time.monotonic() - self._unrecorded_since > plan.EDGE_S:
            raise CannotProve(f"{no_run_text(record)}, so it can't be ended; make it shorter than {plan.EDGE_S:g} s")


def no_run_text(record: RunRecord) -> str:
    """Why a record has no steps."""
    if record.begun:
        return "training ended before its first step"
    return "the script made no run of worker (worker.Run, worker.keras.fit, worker.torch.Run, worker.tf1.Run, FilesRun)"
