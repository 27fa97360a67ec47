"""Carries a proof out: the undisturbed run, the killed one, their comparison, and what a difference comes from."""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from supervisor.protocol.plurals import counted, counted_bytes
from supervisor.protocol.proof import (
    MAX_FILE_BYTES,
    MAX_FILES,
    Difference,
    ProofKill,
    ProofReport,
    Verdict,
    fingerprint,
)
from supervisor.protocol.proof_plan import Begun, Killed, PlannedKill, WorkerPlan
from supervisor.prove import plan
from supervisor.prove.cause import explain
from supervisor.prove.comparison.state import CannotCompare, FinalCheckpoint, differing_state, last_checkpoint
from supervisor.prove.comparison.steps import (
    RESTART,
    differing_steps,
    epoch_goes_back,
    first_differing_step,
    metric_names,
)
from supervisor.prove.comparison.values import FIRST_STEPS, lost_values, watched_steps
from supervisor.prove.following import AGAIN, KILLED, UNDISTURBED, RunFollower, Tell, no_run_text
from supervisor.prove.outside import POLL_S as OUTSIDE_POLL_S
from supervisor.prove.outside import OutsideKiller, undisturbed_record
from supervisor.prove.plan import ProofOptions
from supervisor.prove.record import RunRecord
from supervisor.prove.scratch import CannotProve, ProvableJob, RunFolder, Scratch
from supervisor.prove.session import POLL_S, Session
from supervisor.prove.torch_states import compare_torch_with

NEVER = 1_000_000_000  # steps between two saves of an undisturbed run, which saves at its end only
RESTART_S = (
    120.0  # that a killed run may take longer for each kill than the undisturbed one took from start to first step
)
SLACK_S = 300.0
MAX_DIFFERENCES = 50
STEPS_NEEDED = 3
OUTSIDE_TRIES = 3  # to kill a program from outside behind a checkpoint, which on a busy machine may come too late
SHORT_S = 10.0  # a run from outside that took no longer costs little to try again
SHORT_TRIES = 12  # of such runs, of which the kill may miss most


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that has ended."""

    record: RunRecord
    checkpoint: FinalCheckpoint
    is_whole: bool  # the script ended it
    first_step_s: float
    took_s: float
    is_outside: bool = False  # it makes no run of the package worker, so it is recorded and killed from outside


class Proof:
    """One proof of one job."""

    def __init__(self, job: ProvableJob, wanted: ProofOptions, scratch: Scratch, tell: Tell) -> None:
        self._job = job
        self._wanted = wanted
        self._scratch = scratch
        self._tell = tell
        self._began_at = time.monotonic()

    def carry_out(self) -> ProofReport:
        """The report. Raises CannotProve, OSError."""
        undisturbed = self._run(UNDISTURBED, WorkerPlan(end=self._wanted.steps, watched=FIRST_STEPS), NEVER)
        kills = self._plan_kills(undisturbed)
        end = plan.end_of_killed_run(undisturbed.record.last, is_whole=undisturbed.is_whole)
        interval = self._interval(undisturbed)
        report = self._report(undisturbed)
        self._require_room(undisturbed.checkpoint)
        try:
            killed = self._run_killed(WorkerPlan(kills, end, watches_restarts=True), interval, undisturbed)
        except _Failed as failure:
            killed_record = failure.record
            return replace(
                self._different(report, undisturbed, killed_record, [failure.difference]),
                kills=_kills(kills, killed_record),
            )
        self._require_resumes(_kills(kills, killed.record))
        report = replace(report, kills=_kills(kills, killed.record), named=_names(killed.record) or report.named)
        differences = self._differences(undisturbed, killed)
        if not differences:
            return self._ended(report)
        return self._different(report, undisturbed, killed.record, differences)

    def _run_killed(self, worker_plan: WorkerPlan, interval: int, undisturbed: _Run) -> _Run:
        """The killed run: from outside again where no restart began from a checkpoint, as it was over before."""
        tries = 0
        while True:
            killed = self._run(KILLED, worker_plan, interval, undisturbed)
            tries += 1
            most = SHORT_TRIES if killed.took_s <= SHORT_S else OUTSIDE_TRIES
            is_seen = _resumed(_kills(worker_plan.kills, killed.record))
            if is_seen or not undisturbed.is_outside or tries >= most:
                return killed

    def _different(
        self, report: ProofReport, undisturbed: _Run, killed: RunRecord, differences: Sequence[Difference]
    ) -> ProofReport:
        end = None if undisturbed.is_whole else undisturbed.record.last
        again = self._run(AGAIN, WorkerPlan(end=end, watched=watched_steps(killed)), NEVER, undisturbed)
        differs_at = first_differing_step(undisturbed.record, killed)
        lost = lost_values(killed, undisturbed.record, again.record, metric_names(undisturbed.record), differs_at)
        own = self._differences(undisturbed, again)
        named = {line.name: line for line in (*undisturbed.record.named, *killed.named)}.values()
        goes_back = epoch_goes_back(undisturbed.record, killed)
        explanation = explain(differences, tuple(named), lost, repeats=not own, goes_back=goes_back)
        return self._ended(
            replace(
                report,
                verdict=Verdict.DIFFERENT,
                differences=tuple(own or differences)[:MAX_DIFFERENCES],
                likely=explanation.likely,
                reason=explanation.reason,
                remedy=explanation.remedy,
            )
        )

    def _differences(self, one: _Run, other: _Run) -> list[Difference]:
        """What differs, the earliest first. Raises CannotProve if that can't be found out."""
        steps = differing_steps(one.record, other.record, is_whole=one.is_whole)
        compare_torch = compare_torch_with(one.record, self._job)
        names = {f"last {difference.name}" for difference in steps}
        try:
            state = differing_state(one.checkpoint, other.checkpoint, compare_torch)
        except CannotCompare as error:
            if not steps:
                raise CannotProve(str(error)) from error
            state = []
        return [*steps, *(difference for difference in state if difference.name not in names)]

    def _interval(self, undisturbed: _Run) -> int:
        steps = undisturbed.record.steps
        trained_s = steps[-1].at - steps[0].at
        return plan.steps_between_saves(undisturbed.record.last, self._wanted.kills, trained_s / max(1, len(steps) - 1))

    def _plan_kills(self, undisturbed: _Run) -> tuple[PlannedKill, ...]:
        record = undisturbed.record
        return plan.plan_kills(
            [step.step for step in record.steps],
            record.edges,
            self._wanted.kills,
            self._interval(undisturbed),
            is_whole=undisturbed.is_whole and not undisturbed.is_outside,
        )

    def _report(self, undisturbed: _Run) -> ProofReport:
        record = undisturbed.record
        edges = [edge for edge in record.edges if edge <= record.last]
        if undisturbed.is_whole and record.last not in edges and not undisturbed.is_outside:
            edges.append(record.last)
        not_varied = ["another host", "other devices, such as another GPU", "a power cut"]
        if not edges:
            not_varied.append(f"an epoch's end, as there is none in {counted(record.last, 'step')}")
        if undisturbed.is_outside:
            not_varied.append("the metrics of each step, as the program makes no run of worker's")
        if not undisturbed.is_whole:
            not_varied.append(f"the end of training, as the runs end at step {record.last}")
        files = _files(self._job, record)
        return ProofReport(
            verdict=Verdict.EXACT,
            job=self._job.name,
            wall_at=time.time(),
            took_s=0.0,
            steps=record.last,
            epoch_ends=len(edges),
            state_bytes=undisturbed.checkpoint.state_bytes,
            named=_names(record),
            not_varied=tuple(not_varied),
            script=fingerprint(self._job.command, files, _read_file),
            files=files,
        )

    def _ended(self, report: ProofReport) -> ProofReport:
        return replace(report, wall_at=time.time(), took_s=round(time.monotonic() - self._began_at, 1))

    def _require_resumes(self, kills: Sequence[ProofKill]) -> None:
        if not _resumed(kills):
            raise CannotProve(
                f"none of {counted(len(kills), 'restart')} began from a checkpoint, so they show nothing; train "
                f"longer, with --steps or --epochs"
            )

    def _require_room(self, checkpoint: FinalCheckpoint) -> None:
        needed = 8 * checkpoint.state_bytes  # five that are kept, one that is written, and those of the other runs
        free = shutil.disk_usage(self._scratch.path).free
        if free < needed:
            raise CannotProve(
                f"there are {counted_bytes(free)} free at {self._scratch.path}, and the checkpoints of a proof take "
                f"{counted_bytes(needed)}; name a folder with more room with --scratch"
            )

    def _run(self, name: str, worker_plan: WorkerPlan, interval: int, undisturbed: _Run | None = None) -> _Run:
        """Runs the job once. Raises CannotProve; _Failed if a killed run can't go on."""
        folder = self._scratch.run_folder(name.replace(" ", "-"))
        worker_plan.write(folder.proof)
        restarts = len(worker_plan.kills) + 2 if worker_plan.kills else 0
        folder.write_configuration(self._job, interval, restarts=restarts)
        began_at = time.monotonic()
        deadline_at = None
        if undisturbed is not None:
            first_s = undisturbed.first_step_s + RESTART_S
            deadline_at = began_at + 4 * undisturbed.took_s + (len(worker_plan.kills) + 1) * first_s + SLACK_S
        expected = None if undisturbed is None else undisturbed.record.last
        is_outside = undisturbed is not None and undisturbed.is_outside
        killer = OutsideKiller(folder, worker_plan.kills) if is_outside else None
        follower = RunFollower(self._tell, name, worker_plan, self._wanted, folder, began_at, killer, expected)
        with Session(self._job, folder) as session:
            poll_s = OUTSIDE_POLL_S if killer is not None else POLL_S
            status = session.follow(follower.on_change, deadline_at, poll_s)
            record = session.reader.record() if killer is None else killer.record
        if status["state"] != "SUCCEEDED":
            raise self._failure(status, record, folder, is_killed=bool(worker_plan.kills))
        checkpoint, took_s = last_checkpoint(folder.checkpoints), time.monotonic() - began_at
        is_outside = killer is not None or (not record.begun and status["job"]["step"] is not None)
        if is_outside and checkpoint is not None:
            if self._wanted.steps is not None or self._wanted.epochs is not None:
                raise CannotProve("the program makes no run of worker's, so it ends where it likes: leave out --steps")
            # what the daemon shows of the steps is not all of them; the last one is certain
            shown = undisturbed_record(checkpoint.step, took_s)
            was_seen = killer is not None and bool(killer.record.begun)
            record = RunRecord((*record.lines, shown.lines[-1])) if was_seen else shown
        if not record.begun or not record.steps:
            raise CannotProve(no_run_text(record))
        if record.last < STEPS_NEEDED:
            raise CannotProve(f"training has {counted(record.last, 'step')}; a proof needs {STEPS_NEEDED} or more")
        if checkpoint is None:
            raise CannotProve("the run left no whole checkpoint")
        end = follower.end
        is_whole = is_outside or end is None or record.last < end
        return _Run(record, checkpoint, is_whole, follower.first_step_s, took_s, is_outside)

    def _failure(self, status: dict[str, Any], record: RunRecord, folder: RunFolder, *, is_killed: bool) -> Exception:
        why = str(status["reason"] or status["description"])
        if is_killed and record.killed:
            return _Failed(record, Difference(RESTART, record.killed[-1].step, "trains on", f"fails: {why}"))
        lines = "".join(f"\n  {line}" for line in folder.last_stderr())
        at = f" at step {record.last}" if record.steps else " before its first step"
        return CannotProve(f"the script fails by itself{at}: {why}{lines}")


class _Failed(Exception):
    """A killed run could not go on."""

    def __init__(self, record: RunRecord, difference: Difference) -> None:
        super().__init__(difference.killed)
        self.record = record
        self.difference = difference


def _names(record: RunRecord) -> tuple[str, ...]:
    return tuple(named.name + (" (in leave_out)" if named.left_out else "") for named in record.named)


def _kills(planned: Sequence[PlannedKill], record: RunRecord) -> tuple[ProofKill, ...]:
    """The kills that happened, each with the step from which the next attempt went on."""
    kills: list[ProofKill] = []
    for line in record.lines:
        if isinstance(line, Killed):
            kills.append(ProofKill(planned[line.number].place, line.step, line.damaged is not None))
        elif kills and kills[-1].resumed_from is None and isinstance(line, Begun):
            # of a program that is watched from outside, the newest step may be newer than the one that was seen
            kills[-1] = replace(kills[-1], resumed_from=line.step, step=max(kills[-1].step, line.step))
    return tuple(kills)


def _resumed(kills: Sequence[ProofKill]) -> bool:
    """Whether a restart began from a checkpoint."""
    return any(kill.resumed_from for kill in kills)


def _files(job: ProvableJob, record: RunRecord) -> tuple[str, ...]:
    """The script's own files: as its process says, else those that the command names."""
    said = record.begun[0].files if record.begun else ()
    named = (job.directory / word for word in job.command if word.endswith(".py"))
    return said[:MAX_FILES] or tuple(str(path) for path in named if path.is_file())


def _read_file(name: str) -> bytes:
    with Path(name).open("rb") as file:
        return file.read(MAX_FILE_BYTES)
