"""The metrics of programs and jobs: name, type, meaning, and where the value comes from; one row for each."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from supervisor.control.metrics.sampling import JobSample, ProgramSample


class MetricType(StrEnum):
    """A gauge goes up and down, a counter only grows, a summary has the count and the sum of durations."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


Value = float | tuple[int, float] | None
"""A number, or (count, sum) of a summary; None: not known, and then left out."""


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
    """A metric with one value for each program and each value of a second label."""

    name: str
    kind: MetricType
    text: str
    label: str
    values: Callable[[ProgramSample], dict[str, float]]


PROGRAMS = (
    ProgramMetric(
        "stepkeeper_program_up", MetricType.GAUGE, "1 while the program has a process.", lambda of: of.pid is not None
    ),
    ProgramMetric(
        "stepkeeper_program_wanted",
        MetricType.GAUGE,
        "1 if the program should run, whether or not it does.",
        lambda of: of.wanted,
    ),
    ProgramMetric(
        "stepkeeper_program_start_timestamp_seconds",
        MetricType.GAUGE,
        "When its current process was started (Unix time).",
        lambda of: of.started_wall_at,
    ),
    ProgramMetric(
        "stepkeeper_program_attempt",
        MetricType.GAUGE,
        "Number of its current or last attempt, from 1.",
        lambda of: of.attempt,
    ),
    ProgramMetric("stepkeeper_attempts_total", MetricType.COUNTER, "Attempts started.", lambda of: of.attempts),
    ProgramMetric(
        "stepkeeper_invariants_broken_total",
        MetricType.COUNTER,
        "Defects that the daemon noticed itself (invariant.broken in its log). Please report them.",
        lambda of: of.invariants_broken,
    ),
)

LABELLED = (
    LabelledMetric(
        "stepkeeper_program_state",
        MetricType.GAUGE,
        "Always 1; the label is its current state.",
        "state",
        lambda of: {str(of.state): 1},
    ),
    LabelledMetric(
        "stepkeeper_attempts_ended_total",
        MetricType.COUNTER,
        "Attempts that have ended, by cause.",
        "cause",
        lambda of: dict(of.ended),
    ),
    LabelledMetric(
        "stepkeeper_restarts_left",
        MetricType.GAUGE,
        "How many more failures with this cause, without progress in between, are followed by another attempt.",
        "cause",
        lambda of: dict(of.restarts_left),
    ),
    LabelledMetric(
        "stepkeeper_older_starts_total",
        MetricType.COUNTER,
        "Jobs only: attempts that began from an older checkpoint than the newest one, by the reason.",
        "because",
        lambda of: dict(of.older_starts),
    ),
    LabelledMetric(
        "stepkeeper_program_seconds_total",
        MetricType.COUNTER,
        "Time spent in each of these: starting, running, flushing, stopping, backoff, down.",
        "spent",
        lambda of: of.spent_s,
    ),
    LabelledMetric(
        "stepkeeper_goodput_seconds_total",
        MetricType.COUNTER,
        "Jobs only: time spent, by the categories of docs/goodput.md, counted once its category is known.",
        "category",
        lambda of: of.goodput_s,
    ),
)

JOBS = (
    JobMetric("stepkeeper_step", MetricType.GAUGE, "The last optimizer step that was reported.", lambda of: of.step),
    JobMetric(
        "stepkeeper_target_step", MetricType.GAUGE, "The step at which training is complete.", lambda of: of.total_steps
    ),
    JobMetric(
        "stepkeeper_step_duration_seconds",
        MetricType.GAUGE,
        "Mean time of a step, as last reported.",
        lambda of: of.step_s,
    ),
    JobMetric(
        "stepkeeper_step_usual_seconds",
        MetricType.GAUGE,
        "Usual time of a step, by the job's own past; absent until ten minutes of training are known.",
        lambda of: of.usual_step_s,
    ),
    JobMetric(
        "stepkeeper_training_slower",
        MetricType.GAUGE,
        "1 while the job trains at least a fifth slower than usual.",
        lambda of: of.slower,
    ),
    JobMetric(
        "stepkeeper_step_timestamp_seconds",
        MetricType.GAUGE,
        "When training last reported a new step (Unix time).",
        lambda of: of.progressed_wall_at,
    ),
    JobMetric(
        "stepkeeper_steps_total", MetricType.COUNTER, "Steps done, including repeated ones.", lambda of: of.steps
    ),
    JobMetric(
        "stepkeeper_steps_repeated_total",
        MetricType.COUNTER,
        "Steps done again because a worker ended after its last checkpoint.",
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
        "Size of the newest checkpoint on the disk.",
        lambda of: of.checkpoint_size_bytes,
    ),
    JobMetric(
        "stepkeeper_mirror_step",
        MetricType.GAUGE,
        "Step of the newest checkpoint in the job's mirror.",
        lambda of: of.mirror_step,
    ),
    JobMetric(
        "stepkeeper_mirror_behind_seconds",
        MetricType.GAUGE,
        "Age of the oldest checkpoint on the disk that is newer than everything in the mirror; 0 if there is none.",
        lambda of: of.mirror_behind_s,
    ),
    JobMetric(
        "stepkeeper_checkpoint_interval_seconds",
        MetricType.GAUGE,
        "Time between two checkpoints; if the interval is set in steps, how long these take now.",
        lambda of: of.checkpoint_interval_s,
    ),
    JobMetric(
        "stepkeeper_checkpoint_last_save_seconds",
        MetricType.GAUGE,
        "How long the last save took, until the checkpoint was on the disk.",
        lambda of: of.save_s,
    ),
    JobMetric(
        "stepkeeper_checkpoint_save_seconds",
        MetricType.SUMMARY,
        "Number and duration of saves.",
        lambda of: of.saves,
    ),
    JobMetric(
        "stepkeeper_checkpoint_stall_seconds",
        MetricType.SUMMARY,
        "Number of saves, and how long they paused training.",
        lambda of: of.stalls,
    ),
    JobMetric(
        "stepkeeper_checkpoint_saves_failed_total",
        MetricType.COUNTER,
        "Saves that failed.",
        lambda of: of.saves_failed,
    ),
    JobMetric(
        "stepkeeper_replayed_steps_total",
        MetricType.COUNTER,
        "Steps that were trained a second time, and compared.",
        lambda of: of.replayed_steps,
    ),
    JobMetric(
        "stepkeeper_replay_differences_total",
        MetricType.COUNTER,
        "Replays that gave other bits.",
        lambda of: of.replay_differences,
    ),
    JobMetric(
        "stepkeeper_checkpoints_refused_total",
        MetricType.COUNTER,
        "Checkpoints that were refused: damaged, rolled back, or unfit for the program.",
        lambda of: of.refused,
    ),
    JobMetric(
        "stepkeeper_messages_refused_total",
        MetricType.COUNTER,
        "Messages of the worker that were refused: no messages, or out of their limits.",
        lambda of: of.messages_refused,
    ),
    JobMetric(
        "stepkeeper_messages_left_out_total",
        MetricType.COUNTER,
        "Messages of the worker that were left out, as they came too often.",
        lambda of: of.messages_left_out,
    ),
    JobMetric(
        "stepkeeper_waits_for_storage",
        MetricType.GAUGE,
        "1 while the job waits for a disk: of its checkpoint directory, or of what it is started from.",
        lambda of: of.waits_for_storage,
    ),
    JobMetric(
        "stepkeeper_proof_exact",
        MetricType.GAUGE,
        "1 if the newest proof found that kills change no bit, 0 if it found a difference; absent without a verdict.",
        lambda of: of.proof_exact,
    ),
    JobMetric(
        "stepkeeper_flush_last_seconds",
        MetricType.GAUGE,
        "How long the last flush took, until the checkpoint was on the disk.",
        lambda of: of.flush_s,
    ),
    JobMetric(
        "stepkeeper_flush_expected_seconds",
        MetricType.GAUGE,
        "Expected time of a flush while all jobs flush, including the step before it and the margin.",
        lambda of: of.flush_expected_s,
    ),
    JobMetric(
        "stepkeeper_flush_seconds",
        MetricType.SUMMARY,
        "Number and duration of flushes.",
        lambda of: of.flushes,
    ),
)
