"""What the command `status` says of a program that trains."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.control.base.json_types import fields_of
from supervisor.control.commands.prove import ProofStatus, ProvingNow, proof_status, proving_now
from supervisor.core.standby.facts import StandbyKind, StandbyStage
from supervisor.protocol.checkpoints.account import ReportedCheckpoint
from supervisor.protocol.damage import OlderBecause
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.mirror.asking import MirrorStatus
from supervisor.runner.program.runner import Runner
from supervisor.runner.records.training import LatestCheckpoint


@dataclass(frozen=True, slots=True)
class StandbyAnswer:
    """A job's standby process. `wanted`, `kind`: how much of a start it is to do beforehand, and does;
    `reason`: why there is none."""

    wanted: StandbyKind
    stage: StandbyStage
    kind: StandbyKind | None
    pid: int | None
    memory_bytes: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class GangAnswer:
    """Of which gang a job is a rank. `nodes`: those that train, by rank; `generation`: grows with each start of all.

    `rank`: null on a spare node, which waits until one of those is lost or leaves. `left`: on the first node, those
    that have left because their hosts go away, and are not back.
    """

    rank: int | None
    nodes: tuple[str, ...]
    generation: int
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What `status` says of a program that trains. From `step` on, the fields of `Training`, which explains them.

    `section`: what hang detection is waiting for now, and `hang_limit_s` how long; `silence`: what its processes do, by
    the last look, if it has been silent for long; `slower`: that it trains slower than it used to, and why;
    `usual_step_s`: what its steps usually take; `suspects`: checkpoints that are
    avoided because attempts failed after restoring them; `waits_for_storage`: it waits for the disk of its checkpoint
    directory, or of what it is started from;
    `newest`: the newest checkpoint that was ever reported as committed; `older_because`, `older_text`: why the attempt
    began from an older one than that was, null if it did not; `storage_remarks`: what checkpoints can't
    rely on in the directory's file system; `replicas_wanted`: the number of devices that its section asks for;
    `proof`: the newest proof of exactness; `proving`: how far the one under way is;
    `refused`: what the daemon did not take of the worker's messages, or did not write down of them, in words.
    """

    attempt: int
    checkpoint_dir: str
    section: str | None
    hang_limit_s: float | None
    silence: str | None
    slower: str | None
    usual_step_s: float | None
    suspects: tuple[str, ...]
    mirror: MirrorStatus | None
    gang: GangAnswer | None
    waits_for_storage: bool
    newest: ReportedCheckpoint | None
    older_because: OlderBecause | None
    older_text: str | None
    storage_remarks: tuple[str, ...]
    refused: tuple[str, ...]
    standby: StandbyAnswer | None
    step: int | None
    total_steps: int | None
    epoch: int | None
    step_s: float | None
    metrics: Mapping[str, float]
    checkpoint: LatestCheckpoint | None
    restored: str | None
    save_error: str | None
    traceback: tuple[str, ...]
    interval_s: float | None
    memory_step: int | None
    memory_interval_s: float | None
    memory_cost_s: float | None
    memory_bytes: int
    memory_off: str | None
    changed: tuple[str, ...]
    proof: ProofStatus | None
    proving: ProvingNow | None
    left_out: tuple[str, ...]
    replicas: int | None
    replicas_wanted: int | None
    gpus_left_out: str | None
    gpus_missing: str | None
    is_imported: bool


def _gang(runner: Runner) -> GangAnswer | None:
    if (place := runner.place) is None:
        return None
    if (spare_of := runner.spare_of) is not None:
        return GangAnswer(None, spare_of, place.generation)
    return GangAnswer(place.rank, place.nodes, place.generation, runner.left_nodes)


def job_status(runner: Runner, proofs: Proofs) -> JobStatus | None:
    """What `status` says of a program that trains; None for others."""
    if runner.config.job is None:
        return None
    policy, detector, standby = runner.facts.policy, runner.facts.hang_detector, runner.standby
    older = runner.facts.current.older
    is_learned = policy.hang_timeout_min is not None
    training: dict[str, Any] = fields_of(runner.records.training)
    return JobStatus(
        attempt=runner.attempt,
        checkpoint_dir=str(runner.config.job.checkpoint_dir),
        replicas_wanted=runner.config.job.replicas,
        section=str(detector.section) if runner.pid is not None else None,
        hang_limit_s=detector.limit(detector.section, policy.hang_timeout_min or 0.0)
        if is_learned
        else policy.hang_timeout,
        silence=None if (verdict := runner.facts.current.silence) is None else verdict.why,
        slower=None if (slowdown := runner.facts.current.slowdown) is None else str(slowdown),
        usual_step_s=None if (speed := runner.records.speed) is None else speed.usual_step_s,
        suspects=tuple(sorted(runner.facts.suspects.avoid)),
        mirror=runner.mirror.status if runner.mirror is not None else None,
        gang=_gang(runner),
        waits_for_storage=runner.facts.waits_for_storage,
        newest=runner.facts.account.newest,
        proof=proof_status(proofs, runner.name),
        proving=proving_now(proofs, runner.name),
        older_because=None if older is None else older.because,
        older_text=None if older is None else older.text,
        storage_remarks=runner.records.storage_remarks,
        refused=runner.records.losses.describe(time.monotonic()),
        gpus_left_out=runner.facts.current.gpus_left_out,
        standby=StandbyAnswer(**standby.status()) if standby is not None else None,
        **training,
    )
