"""Whether a job may be proven now, and what ends a proof that is under way.

A proof runs the job's own command, several times and often killed, in a scratch folder. It writes nothing of the job's,
but it takes devices and memory as the job does. So the job must not run meanwhile, unless somebody says that both fit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from supervisor.core.gpus.verdict import Gpu, chosen_gpus
from supervisor.core.program.facts import ALIVE, State


class ProofObstacle(StrEnum):
    """Why a job can't be proven now."""

    BUSY = "busy"  # somebody can make room, or say that there is enough (`anyway`)
    OTHER_PROOF = "other proof"  # one at a time on this host
    NOT_PROVABLE = "not provable"  # nothing can be done about it here: that is the verdict


@dataclass(frozen=True, slots=True)
class JobSituation:
    """What decides about a proof of a job. `is_due`: it is to start by itself, and waits for something.

    `nodes`: how many train it together; `proving`: the job that is being proven on this host, if there is one; `gpus`:
    as the driver lists them, none without a driver; `visible`: the job's CUDA_VISIBLE_DEVICES.
    """

    name: str
    state: State
    is_due: bool = False
    nodes: int = 1
    proving: str | None = None
    gpus: Sequence[Gpu] = ()
    visible: str | None = None


def find_obstacle(job: JobSituation, anyway: bool = False) -> tuple[ProofObstacle, str] | None:
    """Why the job can't be proven now, with what to do; None if it can."""
    if job.nodes > 1:
        why = f"{job.nodes} nodes train {job.name} together, and a proof runs on one; prove the script on one node"
        return ProofObstacle.NOT_PROVABLE, why
    if job.proving is not None:
        remedy = f"wait for it, or cancel it: supervisorctl prove --cancel {job.proving}"
        return ProofObstacle.OTHER_PROOF, f"{job.proving} is being proven, one at a time on a host; {remedy}"
    if anyway:
        return None
    remedy = f"supervisorctl stop {job.name}, prove it, then start it; or use --anyway if there is room for both"
    if job.state in ALIVE:
        doing = "is about to train" if job.state is State.STARTING else "has a process"
        return ProofObstacle.BUSY, f"{job.name} {doing} ({job.state}): a proof would take its devices twice; {remedy}"
    if job.state is State.BACKOFF or job.is_due:
        return ProofObstacle.BUSY, f"{job.name} will start by itself while it is being proven; {remedy}"
    return _gpus_in_use(job)


def _gpus_in_use(job: JobSituation) -> tuple[ProofObstacle, str] | None:
    own = chosen_gpus(job.gpus, job.visible)
    if not own or any(not gpu.pids and gpu.trouble is None for gpu in own):
        return None
    held = ", ".join(f"GPU {gpu.index} by pid {', '.join(map(str, sorted(gpu.pids)))}" for gpu in own if gpu.pids)
    why = f"no GPU of {job.name} is free ({held or 'all are in trouble'})"
    return ProofObstacle.BUSY, f"{why}; end what uses them, or use --anyway if there is room for both"


def why_end(name: str, state: State, is_in_use: bool, anyway: bool) -> str | None:
    """Why a proof that is under way has to end; None if it goes on. `is_in_use`: the daemon still has the job, with the
    section that is being proven."""
    if not is_in_use:
        return f"{name} was removed or changed"
    if state in ALIVE and not anyway:
        return f"{name} was started, and training comes first"
    return None
