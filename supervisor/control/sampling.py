"""What there is to measure at one moment, copied in the event loop so that any thread can make text of it."""

import time
from dataclasses import dataclass

from supervisor.control.asked import Daemon
from supervisor.core.facts import ALIVE, State
from supervisor.core.restart import Cause
from supervisor.protocol.launch import Interval
from supervisor.runner.runner import Runner
from supervisor.runner.tally import Spans

BUDGETED = (Cause.CRASH, Cause.HANG, Cause.STARTUP_TIMEOUT, Cause.SPAWN, Cause.BUSY)
"""The causes that have a budget of restarts."""


@dataclass(frozen=True, slots=True)
class JobSample:
    """A job at one moment; None is not known, and then not said. Times are Unix time, spans seconds."""

    step: int | None
    total_steps: int | None
    step_s: float | None
    steps: int
    repeated_steps: int
    progressed_wall_at: float | None
    checkpoint_step: int | None
    checkpoint_size_bytes: int | None
    checkpoint_wall_at: float | None
    checkpoint_interval_s: float | None
    save_s: float | None
    flush_s: float | None
    saves: tuple[int, float]
    stalls: tuple[int, float]
    flushes: tuple[int, float]
    saves_failed: int
    refused: int


@dataclass(frozen=True, slots=True)
class ProgramSample:
    """A program at one moment. `ended` and `spent_s`: by cause, and by what the seconds went into."""

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
    job: JobSample | None


@dataclass(frozen=True, slots=True)
class Sample:
    """The daemon at one moment."""

    programs: tuple[ProgramSample, ...]
    is_leaving: bool
    ledger_in_trouble: bool
    logs_in_trouble: int


def sample(daemon: Daemon) -> Sample:
    """What there is to say now. For the event loop's thread; takes some microseconds a program."""
    runners = daemon.programs.runners
    return Sample(
        tuple(_program(runners[name]) for name in sorted(runners)),
        daemon.programs.closing,
        daemon.ledger.last_error is not None,
        len(daemon.logs.troubles),
    )


def _program(runner: Runner) -> ProgramSample:
    tally = runner.acts.tally
    tally.stood(runner.state, time.monotonic())
    alive = runner.state in ALIVE
    return ProgramSample(
        name=runner.name,
        state=runner.state,
        wanted=runner.wanted,
        pid=runner.acts.pid,
        started_wall_at=runner.acts.started_wall_at if alive else None,
        attempt=runner.attempt,
        attempts=tally.attempts,
        ended={**{str(cause): 0 for cause in BUDGETED}, **tally.ended},
        restarts_left={str(cause): runner.restarts_left(cause) for cause in BUDGETED},
        spent_s=dict(tally.spent_s),
        job=_job(runner),
    )


def _job(runner: Runner) -> JobSample | None:
    if runner.config.job is None:
        return None
    tally, training = runner.acts.tally, runner.acts.training
    newest = training.checkpoint
    return JobSample(
        step=training.step,
        total_steps=training.total_steps,
        step_s=training.step_s,
        steps=tally.steps,
        repeated_steps=tally.repeated_steps,
        progressed_wall_at=tally.progressed_wall_at,
        checkpoint_step=newest.step if newest else None,
        checkpoint_size_bytes=newest.size_bytes if newest else None,
        checkpoint_wall_at=newest.committed_wall_at if newest else None,
        checkpoint_interval_s=_interval_s(runner.config.job.checkpoint_interval, training.step_s),
        save_s=tally.save.last_s,
        flush_s=tally.flush.last_s,
        saves=_totals(tally.save),
        stalls=_totals(tally.stall),
        flushes=_totals(tally.flush),
        saves_failed=tally.saves_failed,
        refused=tally.refused,
    )


def _totals(spans: Spans) -> tuple[int, float]:
    return spans.count, spans.sum_s


def _interval_s(interval: Interval, step_s: float | None) -> float | None:
    """Seconds between two saves; where it is set in steps, as long as they take now."""
    if interval.steps is not None:
        return None if step_s is None else interval.steps * step_s
    return interval.seconds
