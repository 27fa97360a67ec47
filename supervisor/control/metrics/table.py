"""The metrics of programs and jobs: name, kind, meaning, and where the value comes from. A row adds one."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from supervisor.control.metrics.sampling import JobSample, ProgramSample


class MetricType(StrEnum):
    """What sort of number it is: one that goes up and down, one that only grows, or counts and sums of durations."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


Value = float | tuple[int, float] | None
"""A number, or (count, sum) of a summary; None is not known, and then not said."""


@dataclass(frozen=True, slots=True)
class ProgramMetric:
    """A metric with one value for each program."""

    name: str
    kind: MetricType
    text: str
    value: Callable[[ProgramSample], Value]


@dataclass(frozen=True, slots=True)
class JobMetric:
    """A metric with one value for each job."""

    name: str
    kind: MetricType
    text: str
    value: Callable[[JobSample], Value]


@dataclass(frozen=True, slots=True)
class LabelledMetric:
    """A metric with one value for each program and each word of a second label."""

    name: str
    kind: MetricType
    text: str
    label: str
    values: Callable[[ProgramSample], dict[str, float]]


PROGRAMS = (
    ProgramMetric(
        "stepkeeper_program_up", MetricType.GAUGE, "1 while it has a process.", lambda of: of.pid is not None
    ),
    ProgramMetric(
        "stepkeeper_program_wanted",
        MetricType.GAUGE,
        "1 if it is to run, whether or not it does.",
        lambda of: of.wanted,
    ),
    ProgramMetric(
        "stepkeeper_program_start_timestamp_seconds",
        MetricType.GAUGE,
        "When its present process was started (Unix time).",
        lambda of: of.started_wall_at,
    ),
    ProgramMetric(
        "stepkeeper_program_attempt",
        MetricType.GAUGE,
        "Number of its present or last attempt, from 1; it outlives the daemon.",
        lambda of: of.attempt,
    ),
    ProgramMetric("stepkeeper_attempts_total", MetricType.COUNTER, "Attempts begun.", lambda of: of.attempts),
)

LABELLED = (
    LabelledMetric(
        "stepkeeper_program_state",
        MetricType.GAUGE,
        "Always 1; the label is where it stands now.",
        "state",
        lambda of: {str(of.state): 1},
    ),
    LabelledMetric(
        "stepkeeper_attempts_ended_total",
        MetricType.COUNTER,
        "Attempts that are over, by cause.",
        "cause",
        lambda of: dict(of.ended),
    ),
    LabelledMetric(
        "stepkeeper_restarts_left",
        MetricType.GAUGE,
        "How many more failures of a cause, with no progress between them, are followed by another attempt.",
        "cause",
        lambda of: dict(of.restarts_left),
    ),
    LabelledMetric(
        "stepkeeper_program_seconds_total",
        MetricType.COUNTER,
        "What its time went into: starting, running, flushing, stopping, backoff or down.",
        "spent",
        lambda of: of.spent_s,
    ),
    LabelledMetric(
        "stepkeeper_goodput_seconds_total",
        MetricType.COUNTER,
        "Jobs: what their time went into, by the categories of docs/goodput.md, once that is known.",
        "category",
        lambda of: of.goodput_s,
    ),
)

JOBS = (
    JobMetric("stepkeeper_step", MetricType.GAUGE, "The last optimizer step known of.", lambda of: of.step),
    JobMetric(
        "stepkeeper_target_step", MetricType.GAUGE, "The step at which training is done.", lambda of: of.total_steps
    ),
    JobMetric(
        "stepkeeper_step_duration_seconds", MetricType.GAUGE, "Mean time of a step at present.", lambda of: of.step_s
    ),
    JobMetric(
        "stepkeeper_step_timestamp_seconds",
        MetricType.GAUGE,
        "When training last showed a new step (Unix time).",
        lambda of: of.progressed_wall_at,
    ),
    JobMetric("stepkeeper_steps_total", MetricType.COUNTER, "Steps done, repeated ones too.", lambda of: of.steps),
    JobMetric(
        "stepkeeper_steps_repeated_total",
        MetricType.COUNTER,
        "Steps done a second time, because a worker died after its last checkpoint.",
        lambda of: of.repeated_steps,
    ),
    JobMetric(
        "stepkeeper_checkpoint_step",
        MetricType.GAUGE,
        "Step of the newest checkpoint written.",
        lambda of: of.checkpoint_step,
    ),
    JobMetric(
        "stepkeeper_checkpoint_timestamp_seconds",
        MetricType.GAUGE,
        "When the newest checkpoint was committed (Unix time).",
        lambda of: of.checkpoint_wall_at,
    ),
    JobMetric(
        "stepkeeper_checkpoint_size_bytes",
        MetricType.GAUGE,
        "Size of the newest checkpoint.",
        lambda of: of.checkpoint_size_bytes,
    ),
    JobMetric(
        "stepkeeper_checkpoint_interval_seconds",
        MetricType.GAUGE,
        "How often a checkpoint is to be saved; where that is set in steps, what they take at present.",
        lambda of: of.checkpoint_interval_s,
    ),
    JobMetric(
        "stepkeeper_checkpoint_last_save_seconds",
        MetricType.GAUGE,
        "How long the last save took, from the decision to the last sync.",
        lambda of: of.save_s,
    ),
    JobMetric(
        "stepkeeper_checkpoint_save_seconds",
        MetricType.SUMMARY,
        "How many saves, and how long they took.",
        lambda of: of.saves,
    ),
    JobMetric(
        "stepkeeper_checkpoint_stall_seconds",
        MetricType.SUMMARY,
        "How many saves, and how long training stood still for them.",
        lambda of: of.stalls,
    ),
    JobMetric(
        "stepkeeper_checkpoint_saves_failed_total",
        MetricType.COUNTER,
        "Saves that did not get onto the disk.",
        lambda of: of.saves_failed,
    ),
    JobMetric(
        "stepkeeper_checkpoints_refused_total",
        MetricType.COUNTER,
        "Checkpoints found damaged and set aside.",
        lambda of: of.refused,
    ),
    JobMetric(
        "stepkeeper_flush_last_seconds",
        MetricType.GAUGE,
        "How long the last flush took, from the request to the checkpoint on the disk.",
        lambda of: of.flush_s,
    ),
    JobMetric(
        "stepkeeper_flush_expected_seconds",
        MetricType.GAUGE,
        "How long a flush would take with a step before it and the margin, all jobs flushing; measured jobs only.",
        lambda of: of.flush_expected_s,
    ),
    JobMetric(
        "stepkeeper_flush_seconds",
        MetricType.SUMMARY,
        "How many flushes, and how long they took.",
        lambda of: of.flushes,
    ),
)
