"""Carries a proof out as the job's user: what the daemon starts to prove a job (`host/proof_process.py`).

It reads the plan, becomes the user, and only then takes the job's environment. It makes the scratch folder that the
plan names, and reports in lines of JSON. It ends with its standard input, and ends then all that it started.
"""

import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from supervisor.config import ProgramConfig
from supervisor.host.processes import tree
from supervisor.host.processes.process_status import read_start_time
from supervisor.host.proof_process import ProofPlan, ProofProgress, Proven, encode_output
from supervisor.host.user_folders.folder_removal import empty_removed
from supervisor.protocol.proof import ProofReport, Verdict
from supervisor.prove.following import KILLED, UNDISTURBED, RunProgress
from supervisor.prove.plan import ProofOptions
from supervisor.prove.proof import Proof
from supervisor.prove.scratch import CannotProve, Scratch, job_of
from supervisor.prove.texts import report_lines

SCRATCH_VARIABLE = "STEPKEEPER_PROOF_SCRATCH"
"""In the environment of all that the proof starts, so that none of it can be missed (`host/proof_cleanup.py`)."""

MAX_PATH_BYTES = 50  # of the scratch folder: private daemons have sockets in it, whose paths are short
TOLD_EVERY_S = 1.0
KILL_POLL_S = 0.01
SHARES = {UNDISTURBED: (0.0, 0.4), KILLED: (0.4, 0.95)}
"""Where in the whole proof each run begins and ends; the third run, which few proofs have, is the rest."""


def main() -> None:
    """Proves what the plan on standard input says."""
    plan: ProofPlan = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the daemon that started this process
    if plan.identity is not None:
        plan.identity.assume()
    tree.become_subreaper()  # what loses its parent stays this process's, and ends with it
    output = os.dup(1)
    os.dup2(2, 1)  # the line of the report is the only thing that goes there
    os.environ.clear()
    os.environ.update(plan.environment)
    watch: threading.Thread | None = None
    try:
        if not os.access(sys.executable, os.X_OK):
            remedy = "install stepkeeper where that user can read it"
            raise CannotProve(f"the job's user can't execute {sys.executable}, with which it is proven; {remedy}")
        folder = _make_scratch(plan)
        os.environ[SCRATCH_VARIABLE] = str(folder)
        watch = threading.Thread(target=_end_with_daemon, args=(folder,), daemon=True)
        watch.start()
        report = _prove(plan, folder, partial(_tell, output, [0.0, ""]))
    except (CannotProve, OSError) as error:
        report = ProofReport(Verdict.NOT_PROVABLE, plan.name, time.time(), 0.0, reason=str(error))
    try:
        _write(output, encode_output(Proven(report, "\n".join(report_lines(report)))))
    except OSError:  # the daemon is gone
        if watch is not None:
            watch.join()


def _prove(plan: ProofPlan, folder: Path, tell: "partial[None]") -> ProofReport:
    program = plan.program
    assert isinstance(program, ProgramConfig)
    job = job_of(replace(program, user=None), Path("/"))  # this process is that user
    default = ProofOptions()
    wanted = ProofOptions(default.kills if plan.kills is None else plan.kills, plan.steps, plan.epochs)
    with Scratch(folder, keep=False) as scratch:
        return Proof(job, wanted, scratch, tell).carry_out()


def _make_scratch(plan: ProofPlan) -> Path:
    """Makes the folder in the first place that takes it. Raises CannotProve."""
    problems = list[str]()
    for place in _places(plan):
        try:
            place.mkdir(mode=0o700)
        except OSError as error:
            problems.append(f"{place.parent}: {error.strerror}")
        else:
            return place
    raise CannotProve(f"there is no place for a scratch folder: {'; '.join(problems)}; let the job's user write there")


def _places(plan: ProofPlan) -> Iterator[Path]:
    last = plan.folders[-1]
    for folder in plan.folders:
        if len(os.fsencode(folder / plan.name)) <= MAX_PATH_BYTES or folder == last:
            yield folder / plan.name


def _tell(output: int, last_report: list[float | str], progress: RunProgress) -> None:
    """Says how far the proof is: each change of what is done, and once a second."""
    doing = f"{progress.run} run"
    if progress.planned:
        doing += f", {progress.kills} of {progress.planned} kills"
    now = time.monotonic()
    if doing == last_report[1] and now - float(last_report[0]) < TOLD_EVERY_S:
        return
    last_report[:] = [now, doing]
    begin, end = SHARES.get(progress.run, (0.95, 1.0))
    done = None if not progress.of else begin + (end - begin) * min(1.0, progress.step / progress.of)
    _write(output, encode_output(ProofProgress(doing, done, progress.step, progress.of)))


def _write(output: int, line: bytes) -> None:
    while line:
        line = line[os.write(output, line) :]


def _end_with_daemon(folder: Path) -> None:
    """Waits until the daemon is gone; then ends what this process has started, and removes the folder."""
    while os.read(0, 4096):
        pass
    while tree.kill_all(_live_descendants()):
        time.sleep(KILL_POLL_S)
    with contextlib.suppress(OSError):  # the proof itself may have removed it
        empty_removed(folder)
    os._exit(1)


def _live_descendants() -> list[psutil.Process]:
    """What this process has started, without those that have ended and are not waited for."""
    processes = list[psutil.Process]()
    for process in tree.descendants(os.getpid(), read_start_time(os.getpid()) or 0):
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes
