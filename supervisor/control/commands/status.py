"""The command `status`: everything that clients may want to know about each program."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.config import ProgramConfig
from supervisor.control.base.context import CommandContext
from supervisor.control.base.isolation import not_shown
from supervisor.control.base.json_types import fields_of
from supervisor.control.commands import groups
from supervisor.control.commands.descriptions import full_description, wire_state, wire_state_or_unknown
from supervisor.control.commands.notices import NoticeStatus, notice_status, slow_flush_warning
from supervisor.control.commands.prove import ProofStatus, ProvingNow, difference_found, proof_status, proving_now
from supervisor.core.diagnosis.evidence import Diagnosis
from supervisor.core.program.facts import State
from supervisor.core.standby.facts import StandbyKind, StandbyStage
from supervisor.host.logs import journal, syslog
from supervisor.protocol.checkpoints.account import ReportedCheckpoint
from supervisor.protocol.damage import OlderBecause
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.listeners.hub import ListenerStatus
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStatus:
    """What `status` says of a program.

    `wire_state` and `wire_code` are the state in Supervisor's words and numbers. `wanted`: whether it should run;
    `cgroup`: the control group that holds all its processes, null where there is none and its descendants are only
    watched; `can_outlive`: which of them can outlive a program that they are to end with, in words; `says`: the status
    text it sent itself; `diagnosis`: why its last attempt died, until the next one begins, null if it was meant to end;
    `durable_s`: how long a job's flush is expected to take; `not_applied`: why the last
    update left it as it was, though its section has changed.
    """

    name: str
    group: str
    process: str
    group_priority: int
    priority: int
    state: State
    wire_state: str
    wire_code: int
    description: str
    pid: int | None
    cgroup: str | None
    can_outlive: str | None
    started_wall_at: float | None
    ended_wall_at: float | None
    exit_code: int | None
    signal: int | None
    reason: str | None
    diagnosis: Diagnosis | None
    says: str | None
    wanted: bool
    warning: str | None
    not_applied: str | None
    durable_s: float | None
    notice: NoticeStatus | None
    listener: ListenerStatus | None
    stdout_logfile: str | None
    stderr_logfile: str | None
    job: JobStatus | None


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    """All programs by group and name, and what is wrong with the daemon's own records and hooks."""

    programs: tuple[ProgramStatus, ...]
    ledger_error: str | None
    hooks_error: str | None


async def status(context: CommandContext) -> StatusAnswer:
    """Gives the status of every program, by group and name."""
    log_errors, flush_times_s = context.logs.failures, context.expected_times.flush_times_s()
    shortest_s = context.notices.shortest_s
    await context.proofs.look_at_scripts()
    return StatusAnswer(
        tuple(
            _status_or_line(runner, log_errors, flush_times_s.get(runner.name), shortest_s, context.proofs)
            for runner in groups.in_order(context.programs.runners.values())
        ),
        context.ledger.last_error,
        context.hooks.failure_summary,
    )


def _status_or_line(
    runner: Runner,
    log_errors: Mapping[Path, str],
    flush_time_s: float | None,
    shortest_s: float | None,
    proofs: Proofs,
) -> ProgramStatus:
    """As `_status`; for a program of which something can't be shown, what is always known, and why."""
    try:
        return _status(runner, log_errors, flush_time_s, shortest_s, proofs)
    except Exception as error:  # noqa: BLE001 - it must not hide the others
        (word, code), config = wire_state_or_unknown(runner), runner.config
        return ProgramStatus(
            name=runner.name,
            group=config.group,
            process=config.process,
            group_priority=config.group_priority,
            priority=config.priority,
            state=runner.state,
            wire_state=word,
            wire_code=code,
            description=not_shown(runner.name, error),
            pid=runner.pid,
            cgroup=None,
            can_outlive=None,
            not_applied=runner.not_applied,
            started_wall_at=None,
            ended_wall_at=None,
            exit_code=None,
            signal=None,
            reason=None,
            diagnosis=None,
            says=None,
            wanted=runner.wanted,
            warning=None,
            durable_s=None,
            notice=None,
            listener=None,
            stdout_logfile=_path_text(config.stdout_logfile),
            stderr_logfile=_path_text(config.stderr_logfile),
            job=None,
        )


def _status(
    runner: Runner,
    log_errors: Mapping[Path, str],
    flush_time_s: float | None,
    shortest_s: float | None,
    proofs: Proofs,
) -> ProgramStatus:
    """`log_errors`: by path. `flush_time_s`: of this job; `shortest_s`: the shortest warning this host gives."""
    word, code = wire_state(runner)
    last_exit, config = runner.records.process.last_exit, runner.config
    log_error = next((log_errors[path] for path in _log_destinations(config) if path in log_errors), None)
    is_uploaded = runner.mirror is not None and runner.mirror.is_awaited
    warning = slow_flush_warning(flush_time_s, shortest_s, is_uploaded)
    difference = difference_found(proofs, runner.name)
    return ProgramStatus(
        name=runner.name,
        group=config.group,
        process=config.process,
        group_priority=config.group_priority,
        priority=config.priority,
        state=runner.state,
        wire_state=word,
        wire_code=code,
        description=full_description(runner, log_error, warning, difference),
        not_applied=runner.not_applied,
        pid=runner.pid,
        cgroup=_path_text(runner.current.cgroup),
        can_outlive=runner.current.can_outlive,
        started_wall_at=runner.records.process.started_wall_at,
        ended_wall_at=runner.records.process.ended_wall_at,
        exit_code=last_exit.code if last_exit else None,
        signal=last_exit.signal if last_exit else None,
        reason=runner.reason,
        diagnosis=runner.records.process.diagnosis,
        says=runner.records.process.status_text,
        wanted=runner.wanted,
        warning=warning,
        durable_s=flush_time_s,
        notice=notice_status(runner, time.monotonic()),
        listener=runner.listener_status,
        stdout_logfile=_path_text(config.stdout_logfile),
        stderr_logfile=_path_text(config.stderr_logfile),
        job=job_status(runner, proofs),
    )


def _log_destinations(config: ProgramConfig) -> list[Path]:
    """The files and addresses that a program's output goes to."""
    paths = [path for path in (config.stdout_logfile, config.stderr_logfile) if path is not None]
    if config.stdout_syslog or config.stderr_syslog:
        paths.append(syslog.ADDRESS)
    if config.stdout_journal or config.stderr_journal:
        paths.append(journal.SOCKET)
    return paths


def _path_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


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
        standby=StandbyAnswer(**standby.status()) if standby is not None else None,
        **training,
    )
