"""The metrics of programs and jobs: name, kind, meaning, and where the value comes from. A row adds one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from supervisor.control.metrics.sampling import JobSample, ProgramSample


class Kind(StrEnum):
    """What sort of number it is: one that goes up and down, one that only grows, or counts and sums of durations."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


Value = float | tuple[int, float] | None
"""A number, or (count, sum) of a summary; None is not known, and then not said."""


@dataclass(frozen=True, slots=True)
class OfProgram:
    """A metric with one value for each program."""

    name: str
    kind: Kind
    text: str
    value: Callable[[ProgramSample], Value]


@dataclass(frozen=True, slots=True)
class OfJob:
    """A metric with one value for each job."""

    name: str
    kind: Kind
    text: str
    value: Callable[[JobSample], Value]


@dataclass(frozen=True, slots=True)
class Divided:
    """A metric with one value for each program and each word of a second label."""

    name: str
    kind: Kind
    text: str
    label: str
    values: Callable[[ProgramSample], dict[str, float]]


PROGRAMS = (
    OfProgram("stepkeeper_program_up", Kind.GAUGE, "1 while it has a process.", lambda of: of.pid is not None),
    OfProgram(
        "stepkeeper_program_wanted", Kind.GAUGE, "1 if it is to run, whether or not it does.", lambda of: of.wanted
    ),
    OfProgram(
        "stepkeeper_program_start_timestamp_seconds",
        Kind.GAUGE,
        "When its present process was started (Unix time).",
        lambda of: of.started_wall_at,
    ),
    OfProgram(
        "stepkeeper_program_attempt",
        Kind.GAUGE,
        "Number of its present or last attempt, from 1; it outlives the daemon.",
        lambda of: of.attempt,
    ),
    OfProgram("stepkeeper_attempts_total", Kind.COUNTER, "Attempts begun.", lambda of: of.attempts),
)

DIVIDED = (
    Divided(
        "stepkeeper_program_state",
        Kind.GAUGE,
        "Always 1; the label is where it stands now.",
        "state",
        lambda of: {str(of.state): 1},
    ),
    Divided(
        "stepkeeper_attempts_ended_total",
        Kind.COUNTER,
        "Attempts that are over, by cause.",
        "cause",
        lambda of: dict(of.ended),
    ),
    Divided(
        "stepkeeper_restarts_left",
        Kind.GAUGE,
        "How many more failures of a cause, with no progress between them, are followed by another attempt.",
        "cause",
        lambda of: dict(of.restarts_left),
    ),
    Divided(
        "stepkeeper_program_seconds_total",
        Kind.COUNTER,
        "What its time went into: starting, running, flushing, stopping, backoff or down.",
        "spent",
        lambda of: of.spent_s,
    ),
    Divided(
        "stepkeeper_goodput_seconds_total",
        Kind.COUNTER,
        "Jobs: what their time went into, by the categories of docs/goodput.md, once that is known.",
        "category",
        lambda of: of.goodput_s,
    ),
)

JOBS = (
    OfJob("stepkeeper_step", Kind.GAUGE, "The last optimizer step known of.", lambda of: of.step),
    OfJob("stepkeeper_target_step", Kind.GAUGE, "The step at which training is done.", lambda of: of.total_steps),
    OfJob("stepkeeper_step_duration_seconds", Kind.GAUGE, "Mean time of a step at present.", lambda of: of.step_s),
    OfJob(
        "stepkeeper_step_timestamp_seconds",
        Kind.GAUGE,
        "When training last showed a new step (Unix time).",
        lambda of: of.progressed_wall_at,
    ),
    OfJob("stepkeeper_steps_total", Kind.COUNTER, "Steps done, repeated ones too.", lambda of: of.steps),
    OfJob(
        "stepkeeper_steps_repeated_total",
        Kind.COUNTER,
        "Steps done a second time, because a worker died after its last checkpoint.",
        lambda of: of.repeated_steps,
    ),
    OfJob(
        "stepkeeper_checkpoint_step",
        Kind.GAUGE,
        "Step of the newest checkpoint written.",
        lambda of: of.checkpoint_step,
    ),
    OfJob(
        "stepkeeper_checkpoint_timestamp_seconds",
        Kind.GAUGE,
        "When the newest checkpoint was committed (Unix time).",
        lambda of: of.checkpoint_wall_at,
    ),
    OfJob(
        "stepkeeper_checkpoint_size_bytes",
        Kind.GAUGE,
        "Size of the newest checkpoint.",
        lambda of: of.checkpoint_size_bytes,
    ),
    OfJob(
        "stepkeeper_checkpoint_interval_seconds",
        Kind.GAUGE,
        "How often a checkpoint is to be saved; where that is set in steps, what they take at present.",
        lambda of: of.checkpoint_interval_s,
    ),
    OfJob(
        "stepkeeper_checkpoint_last_save_seconds",
        Kind.GAUGE,
        "How long the last save took, from the decision to the last sync.",
        lambda of: of.save_s,
    ),
    OfJob(
        "stepkeeper_checkpoint_save_seconds",
        Kind.SUMMARY,
        "How many saves, and how long they took.",
        lambda of: of.saves,
    ),
    OfJob(
        "stepkeeper_checkpoint_stall_seconds",
        Kind.SUMMARY,
        "How many saves, and how long training stood still for them.",
        lambda of: of.stalls,
    ),
    OfJob(
        "stepkeeper_checkpoint_saves_failed_total",
        Kind.COUNTER,
        "Saves that did not get onto the disk.",
        lambda of: of.saves_failed,
    ),
    OfJob(
        "stepkeeper_checkpoints_refused_total",
        Kind.COUNTER,
        "Checkpoints found damaged and set aside.",
        lambda of: of.refused,
    ),
    OfJob(
        "stepkeeper_flush_last_seconds",
        Kind.GAUGE,
        "How long the last flush took, from the request to the checkpoint on the disk.",
        lambda of: of.flush_s,
    ),
    OfJob(
        "stepkeeper_flush_expected_seconds",
        Kind.GAUGE,
        "How long a flush would take with a step before it and the margin, all jobs flushing; measured jobs only.",
        lambda of: of.flush_expected_s,
    ),
    OfJob("stepkeeper_flush_seconds", Kind.SUMMARY, "How many flushes, and how long they took.", lambda of: of.flushes),
)
