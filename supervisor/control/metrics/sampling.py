"""The values of all metrics at one moment, copied in the event loop so that another thread can make text of them."""

import time
from collections import Counter
from dataclasses import dataclass, field

from supervisor.control.base.context import CommandContext
from supervisor.control.base.isolation import not_shown
from supervisor.core.failures.restart import Cause
from supervisor.core.gpus.records import WEEKS_S
from supervisor.core.notices.notice import Certainty
from supervisor.core.program.facts import ALIVE, State
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.proof import ProofReport, Verdict
from supervisor.protocol.wire.launch import Interval
from supervisor.runner.fleet.notice_dispatcher import NoticeDispatcher, deadline_wall_at
from supervisor.runner.fleet.proofs import Proofs
from supervisor.runner.gpus.guard import GpuGuard
from supervisor.runner.listeners.hub import PoolCounts
from supervisor.runner.program.runner import Runner
from supervisor.runner.records.counters import DurationStats

BUDGETED = tuple(cause for cause in Cause if cause.traits.is_charged)
"""The causes that have a budget of restarts."""


@dataclass(frozen=True, slots=True)
class JobSample:
    """A job at one moment; None: not known, and then left out. Times are Unix time, lengths of time seconds."""

    step: int | None
    total_steps: int | None
    step_s: float | None
    steps: int
    repeated_steps: int
    progressed_wall_at: float | None
    checkpoint_step: int | None
    mirror_step: int | None
    mirror_behind_s: float | None
    checkpoint_size_bytes: int | None
    checkpoint_wall_at: float | None
    checkpoint_interval_s: float | None
    save_s: float | None
    flush_s: float | None
    flush_expected_s: float | None
    saves: tuple[int, float]
    stalls: tuple[int, float]
    flushes: tuple[int, float]
    saves_failed: int
    replayed_steps: int
    replay_differences: int
    slower: bool
    usual_step_s: float | None
    messages_refused: int
    messages_left_out: int
    refused: int
    waits_for_storage: bool
    proof_exact: bool | None


@dataclass(frozen=True, slots=True)
class ProgramSample:
    """A program at one moment. `ended`: attempts by cause; `spent_s`: seconds by state.

    `goodput_s`: a job's seconds by the categories of docs/goodput.md; `older_starts`: a job's attempts that began from
    an older checkpoint than the newest, by reason.
    """

    name: str
    state: State
    wanted: bool
    pid: int | None
    started_wall_at: float | None
    attempt: int
    attempts: int
    ended: dict[str, int]
    restarts_left: dict[str, int]
    spent_s: dict[str, float]
    older_starts: dict[str, int]
    goodput_s: dict[str, float]
    job: JobSample | None
    invariants_broken: int = 0


@dataclass(frozen=True, slots=True)
class NoticesSample:
    """Notices that this host is going away. `holding`: their number by certainty; `sources`: whether each works.

    `deadline_wall_at`: the earliest moment at which the host certainly may be gone; `shortest_s`: the shortest warning.
    """

    holding: dict[str, int]
    deadline_wall_at: float | None
    sources: dict[str, bool]
    shortest_s: float | None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """A GPU. `faults`: by kind, in the last four weeks."""

    uuid: str
    is_left_out: bool
    in_error: bool
    faults: dict[str, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon at one moment. `not_shown`: programs of which something can't be shown, and is left out."""

    programs: tuple[ProgramSample, ...]
    notices: NoticesSample
    is_leaving: bool
    ledger_in_trouble: bool
    logs_in_trouble: int
    pools: dict[str, PoolCounts] = field(default_factory=dict)
    not_shown: frozenset[str] = frozenset()
    gpus: tuple[GpuSample, ...] = ()
    gpus_silent: bool | None = None


def take_sample(context: CommandContext) -> Sample:
    """All values now. For the event loop's thread; takes some microseconds for each program."""
    runners, expected_s = context.programs.runners, context.expected_times.flush_times_s()
    programs, broken = list[ProgramSample](), set[str]()
    for name in sorted(runners):
        try:
            programs.append(_program(runners[name], expected_s.get(name), context.proofs))
        except Exception as error:  # noqa: BLE001 - it must not hide the others
            not_shown(name, error)
            broken.add(name)
    return Sample(
        tuple(programs),
        _notices(context.notices, time.monotonic()),
        context.programs.closing,
        context.ledger.last_error is not None,
        len(context.logs.failures),
        context.listening.pool_counts(),
        frozenset(broken),
        _gpus(context.gpus),
        context.gpus.hangs is not None if context.gpus.is_started else None,
    )


def _gpus(gpus: GpuGuard) -> tuple[GpuSample, ...]:
    """The GPUs that are watched; none on a host without any, and before the first job."""
    guard = gpus.guard
    in_error = {gpu.uuid for gpu in guard.gpus() if gpu.trouble is not None}
    return tuple(
        GpuSample(
            record.uuid or record.address,
            record.left_out is not None,
            record.uuid in in_error or record.left_out is not None,
            dict(Counter(past.fault for past in record.faults if time.time() - past.wall_at < WEEKS_S)),
        )
        for record in guard.records.gpus.values()
    )


def _notices(dispatcher: NoticeDispatcher, now: float) -> NoticesSample:
    notices = [active_notice.notice for active_notice in dispatcher.by_severity]
    certain = [notice for notice in notices if notice.certainty is Certainty.CERTAIN and notice.deadline_at is not None]
    return NoticesSample(
        holding={str(certainty): sum(notice.certainty is certainty for notice in notices) for certainty in Certainty},
        deadline_wall_at=min(
            (at for at in (deadline_wall_at(notice, now) for notice in certain) if at is not None), default=None
        ),
        sources={health.name: health.error is None for health in dispatcher.source_health},
        shortest_s=dispatcher.shortest_s,
    )


def _program(runner: Runner, flush_expected_s: float | None, proofs: Proofs) -> ProgramSample:
    counters, goodput = runner.records.counters, runner.records.goodput
    goodput.count_state(runner.state, time.monotonic())
    alive = runner.state in ALIVE
    return ProgramSample(
        name=runner.name,
        state=runner.state,
        wanted=runner.wanted,
        pid=runner.pid,
        started_wall_at=runner.records.process.started_wall_at if alive else None,
        attempt=runner.attempt,
        attempts=counters.attempts,
        ended={**{str(cause): 0 for cause in BUDGETED}, **counters.ended_by_cause},
        restarts_left={str(cause): runner.restarts_left(cause) for cause in BUDGETED},
        spent_s=dict(goodput.state_s),
        older_starts=_older_starts(runner),
        goodput_s={str(spent): span_s for spent, span_s in goodput.total_s().items()},
        job=_job(runner, flush_expected_s, proofs.newest(runner.name)),
        invariants_broken=counters.invariants_broken,
    )


def _job(runner: Runner, flush_expected_s: float | None, proof: ProofReport | None) -> JobSample | None:
    if runner.config.job is None:
        return None
    counters, training = runner.records.counters, runner.records.training
    newest = training.checkpoint
    mirror = runner.mirror.status if runner.mirror is not None else None
    return JobSample(
        waits_for_storage=runner.facts.waits_for_storage,
        step=training.step,
        total_steps=training.total_steps,
        step_s=training.step_s,
        steps=counters.steps,
        repeated_steps=counters.repeated_steps,
        progressed_wall_at=counters.progressed_wall_at,
        checkpoint_step=newest.step if newest else None,
        mirror_step=mirror.newest_step if mirror is not None else None,
        mirror_behind_s=mirror.behind_s if mirror is not None else None,
        checkpoint_size_bytes=newest.size_bytes if newest else None,
        checkpoint_wall_at=newest.committed_wall_at if newest else None,
        checkpoint_interval_s=_interval_s(runner.config.job.checkpoint_interval, training.interval_s, training.step_s),
        save_s=counters.save.last_s,
        flush_s=counters.flush.last_s,
        flush_expected_s=flush_expected_s,
        saves=_totals(counters.save),
        stalls=_totals(counters.stall),
        flushes=_totals(counters.flush),
        saves_failed=counters.failed_saves,
        replayed_steps=counters.replayed_steps,
        replay_differences=counters.replay_differences,
        slower=runner.facts.current.slowdown is not None,
        usual_step_s=None if runner.records.speed is None else runner.records.speed.usual_step_s,
        messages_refused=runner.records.losses.refused,
        messages_left_out=runner.records.losses.left_out,
        refused=counters.refused_checkpoints,
        proof_exact=_VERDICTS.get(proof.verdict) if proof is not None else None,
    )


_VERDICTS = {Verdict.EXACT: True, Verdict.DIFFERENT: False}


def _older_starts(runner: Runner) -> dict[str, int]:
    counts = runner.records.counters.older_starts
    return {str(because): counts.get(because, 0) for because in OlderBecause} if runner.config.job is not None else {}


def _totals(spans: DurationStats) -> tuple[int, float]:
    return spans.count, spans.sum_s


def _interval_s(interval: Interval | None, chosen_s: float | None, step_s: float | None) -> float | None:
    """Seconds between two saves: as set, as the worker chose, or, if set in steps, as long as those take now."""
    if interval is None:
        return chosen_s
    if interval.steps is not None:
        return None if step_s is None else interval.steps * step_s
    return interval.seconds
