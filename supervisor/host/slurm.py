"""Slurm's commands, as far as a job may use them: its nodes, its own state, a request to be queued again."""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from supervisor.host.host_tools import ask_tool
from supervisor.host.processes import marks
from supervisor.host.service.single_instance import AlreadyRunning, StateFolder
from supervisor.protocol import allocation
from supervisor.protocol.allocation import Allocation, AllocationError, StepExit

ANSWER_S = 30.0  # a controller that is busy answers late; one that is gone, never
SWEPT_AFTER_S = 3600.0
SWEPT_AT_ONCE = 100
ENDED = frozenset(
    {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL"}
)
"""States (squeue(1)) after which Slurm does not run a job again."""
RUNNING = frozenset({"RUNNING", "CONFIGURING", "RESIZING", "SIGNALING", "PREEMPTED"})
"""States in which Slurm can queue a job again."""
_NODE_LIST = re.compile(r" NodeList=(\S+)")
_STATE = re.compile(r"\bJobState=([A-Z_]+)")


class SlurmError(OSError):
    """Slurm did not do what it was asked; the text says what, why, and what to do."""


def read_nodes(environment: Mapping[str, str], of_step: bool = False) -> tuple[str, ...]:
    """The names of the job's nodes, or of the step's, in the order of ranks. Raises AllocationError or SlurmError."""
    compressed = allocation.compressed_nodes(environment, of_step)
    return allocation.parse_nodes(_ask("find the nodes of this job", "scontrol", "show", "hostnames", compressed))


def find_allocation(environment: Mapping[str, str]) -> Allocation:
    """This node's place in the allocation. Raises AllocationError or SlurmError."""
    if not allocation.is_allocation(environment):
        raise AllocationError(
            "cannot use engine = slurm: SLURM_JOB_ID is not set; start the daemon with sbatch or srun, "
            "or set engine = alone"
        )
    is_one = allocation.is_one_node(environment)
    return allocation.read_allocation(environment, ("localhost",) if is_one else read_nodes(environment, of_step=True))


def job_state(job_id: int) -> str | None:
    """RUNNING, COMPLETING, CANCELLED …; None if Slurm does not say."""
    try:
        match = _STATE.search(_ask("read the state of this job", "scontrol", "show", "job", "-o", str(job_id)))
    except SlurmError:
        return None
    return match[1] if match is not None else None


def remaining_nodes(job_id: int) -> tuple[str, ...] | None:
    """The nodes that a running job has now, without those that it has lost; None if Slurm does not say."""
    try:
        match = _NODE_LIST.search(_ask("read the nodes of this job", "scontrol", "show", "job", "-o", str(job_id)))
        if match is None or match[1].startswith("("):
            return None
        return allocation.parse_nodes(_ask("find the nodes of this job", "scontrol", "show", "hostnames", match[1]))
    except (SlurmError, AllocationError):
        return None


def requeue(job_id: int) -> None:
    """Gives the allocation back and queues the job again; Slurm then ends whoever called. Raises SlurmError."""
    _ask("queue the job again", "scontrol", "requeue", str(job_id))


def claim_folder(folder: Path) -> None:
    """Creates a node's folder for state, or makes sure that it is ours: others can write beside it. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(1, "another user could write there; set state_dir in [supervisord]", str(folder))


def remove_folder(folder: Path, status: int) -> None:
    """Removes a daemon's folder when it has ended with `status`, unless another daemon follows or a user named it."""
    if status in (StepExit.AGAIN, StepExit.NODE_MISSING, StepExit.STORAGE_AWAY):
        return
    with contextlib.suppress(AllocationError):
        if folder == allocation.state_folder(os.environ, os.geteuid()):
            shutil.rmtree(folder, ignore_errors=True)


def sweep_folders(own: Path, older_than_s: float = SWEPT_AFTER_S) -> list[Path]:
    """Removes the folders of this user's earlier jobs beside `own` that Slurm had no time to let end; returns them.

    A folder stays while Slurm knows its job as one that runs or will, while a daemon or a worker of it lives, and
    until it is `older_than_s`. Asks Slurm, which may take long.
    """
    swept = list[Path]()
    name = re.compile(rf"stepkeeper-{os.geteuid()}-([0-9]{{1,12}})(-[a-z0-9_]{{8}})?")  # with more: a verdict's
    with contextlib.suppress(OSError):
        for folder in sorted(own.parent.iterdir()):
            number = name.fullmatch(folder.name)
            if number is not None and folder != own and _was_left(folder, int(number[1]), older_than_s):
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
            if len(swept) >= SWEPT_AT_ONCE:
                break
    return swept


def _was_left(folder: Path, job_id: int, older_than_s: float) -> bool:
    try:
        status = folder.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not is_ours or time.time() - max(status.st_mtime, status.st_ctime) < older_than_s:
            return False
        if not _has_ended(job_id) or marks.processes_of_daemon(folder):
            return False
        StateFolder(folder).lock()  # held until this process ends, which does no harm: the folder goes
    except (OSError, AlreadyRunning):
        return False
    return True


def _has_ended(job_id: int) -> bool:
    """Whether Slurm says so, or has forgotten the job, which it does after a few minutes."""
    try:
        match = _STATE.search(_ask("read the state of a job", "scontrol", "show", "job", "-o", str(job_id)))
    except SlurmError as error:
        return "Invalid job id" in str(error)
    return match is not None and match[1] in ENDED


def _ask(what: str, *command: str) -> str:
    try:
        answer = ask_tool(command, ANSWER_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmError(f"cannot {what}: {error}; check that {command[0]} works on this node") from error
    if answer.status != 0:
        said = (answer.stderr or answer.stdout).decode(errors="replace")
        raise SlurmError(f"cannot {what}: {said.strip()[:500]}")
    return answer.stdout.decode(errors="replace")
