"""The metrics of programs and jobs: name, type, meaning, and where the value comes from; one row for each."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from supervisor.control.metrics.measured_program import BUDGETED, MeasuredProgram
from supervisor.core.program.facts import ALIVE


class MetricType(StrEnum):
    """A gauge goes up and down, a counter only grows, a summary has the count and the sum of durations."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"


Value = float | tuple[int, float] | None
"""A number, or (count, sum) of a summary; None: not known, and then left out."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with one value for each program, or, with a `label`, one for each of the label's words.

    Times are Unix time, lengths of time seconds.
    """

    name: str
    kind: MetricType
    text: str
    value: Callable[[MeasuredProgram], Value | dict[str, float]]
    label: str | None = None


PROGRAMS = (
    Metric(
        "stepkeeper_program_up",
        MetricType.GAUGE,
        "1 while the program has a process.",
        lambda of: of.runner.pid is not None,
    ),
    Metric(
        "stepkeeper_program_wanted",
        MetricType.GAUGE,
        "1 if the program should run, whether or not it does.",
        lambda of: of.runner.wanted,
    ),
    Metric(
        "stepkeeper_program_start_timestamp_seconds",
        MetricType.GAUGE,
        "When its current process was started (Unix time).",
        lambda of: of.runner.records.process.started_wall_at if of.runner.state in ALIVE else None,
    ),
    Metric(
        "stepkeeper_program_attempt",
        MetricType.GAUGE,
        "Number of its current or last attempt, from 1.",
        lambda of: of.runner.attempt,
    ),
    Metric("stepkeeper_attempts_total", MetricType.COUNTER, "Attempts started.", lambda of: of.counters.attempts),
    Metric(
        "stepkeeper_invariants_broken_total",
        MetricType.COUNTER,
        "Defects that the daemon noticed itself (invariant.broken in its log). Please report them.",
        lambda of: of.counters.invariants_broken,
    ),
)

LABELLED = (
    Metric(
        "stepkeeper_program_state",
        MetricType.GAUGE,
        "Always 1; the label is its current state.",
        lambda of: {str(of.runner.state): 1},
        label="state",
    ),
    Metric(
        "stepkeeper_attempts_ended_total",
        MetricType.COUNTER,
        "Attempts that have ended, by cause.",
        lambda of: {**dict.fromkeys(BUDGETED, 0), **of.counters.ended_by_cause},
        label="cause",
    ),
    Metric(
        "stepkeeper_restarts_left",
        MetricType.GAUGE,
        "How many more failures with this cause, without progress in between, are followed by another attempt.",
        lambda of: {cause: of.runner.restarts_left(cause) for cause in BUDGETED},
        label="cause",
    ),
    Metric(
        "stepkeeper_older_starts_total",
        MetricType.COUNTER,
        "Jobs only: attempts that began from an older checkpoint than the newest one, by the reason.",
        lambda of: of.older_starts,
        label="because",
    ),
    Metric(
        "stepkeeper_program_seconds_total",
        MetricType.COUNTER,
        "Time spent in each of these: starting, running, flushing, stopping, backoff, down.",
        lambda of: of.state_s,
        label="spent",
    ),
    Metric(
        "stepkeeper_goodput_seconds_total",
        MetricType.COUNTER,
        "Jobs only: time spent, by the categories of docs/goodput.md, counted once its category is known.",
        lambda of: {str(spent): span_s for spent, span_s in of.runner.records.goodput.total_s().items()},
        label="category",
    ),
)

JOBS = (
    Metric(
        "stepkeeper_step", MetricType.GAUGE, "The last optimizer step that was reported.", lambda of: of.training.step
    ),
    Metric(
        "stepkeeper_target_step",
        MetricType.GAUGE,
        "The step at which training is complete.",
        lambda of: of.training.total_steps,
    ),
    Metric(
        "stepkeeper_step_duration_seconds",
        MetricType.GAUGE,
        "Mean time of a step, as last reported.",
        lambda of: of.training.step_s,
    ),
    Metric(
        "stepkeeper_step_usual_seconds",
        MetricType.GAUGE,
        "Usual time of a step, by the job's own past; absent until ten minutes of training are known.",
        lambda of: None if (speed := of.runner.records.speed) is None else speed.usual_step_s,
    ),
    Metric(
        "stepkeeper_training_slower",
        MetricType.GAUGE,
        "1 while the job trains at least a fifth slower than usual.",
        lambda of: of.runner.facts.current.slowdown is not None,
    ),
    Metric(
        "stepkeeper_step_timestamp_seconds",
        MetricType.GAUGE,
        "When training last reported a new step (Unix time).",
        lambda of: of.counters.progressed_wall_at,
    ),
    Metric(
        "stepkeeper_steps_total",
        MetricType.COUNTER,
        "Steps done, including repeated ones.",
        lambda of: of.counters.steps,
    ),
    Metric(
        "stepkeeper_steps_repeated_total",
        MetricType.COUNTER,
        "Steps done again because a worker ended after its last checkpoint.",
        lambda of: of.counters.repeated_steps,
    ),
    Metric(
        "stepkeeper_checkpoint_step",
        MetricType.GAUGE,
        "Step of the newest checkpoint written.",
        lambda of: None if of.checkpoint is None else of.checkpoint.step,
    ),
    Metric(
        "stepkeeper_checkpoint_timestamp_seconds",
        MetricType.GAUGE,
        "When the newest checkpoint was committed (Unix time).",
        lambda of: None if of.checkpoint is None else of.checkpoint.committed_wall_at,
    ),
    Metric(
        "stepkeeper_checkpoint_size_bytes",
        MetricType.GAUGE,
        "Size of the newest checkpoint on the disk.",
        lambda of: None if of.checkpoint is None else of.checkpoint.size_bytes,
    ),
    Metric(
        "stepkeeper_mirror_step",
        MetricType.GAUGE,
        "Step of the newest checkpoint in the job's mirror.",
        lambda of: None if of.mirror is None else of.mirror.newest_step,
    ),
    Metric(
        "stepkeeper_mirror_behind_seconds",
        MetricType.GAUGE,
        "Age of the oldest checkpoint on the disk that is newer than everything in the mirror; 0 if there is none.",
        lambda of: None if of.mirror is None else of.mirror.behind_s,
    ),
    Metric(
        "stepkeeper_checkpoint_interval_seconds",
        MetricType.GAUGE,
        "Time between two checkpoints; if the interval is set in steps, how long these take now.",
        lambda of: of.checkpoint_interval_s,
    ),
    Metric(
        "stepkeeper_checkpoint_last_save_seconds",
        MetricType.GAUGE,
        "How long the last save took, until the checkpoint was on the disk.",
        lambda of: of.counters.save.last_s,
    ),
    Metric(
        "stepkeeper_checkpoint_save_seconds",
        MetricType.SUMMARY,
        "Number and duration of saves.",
        lambda of: of.counters.save.totals,
    ),
    Metric(
        "stepkeeper_checkpoint_stall_seconds",
        MetricType.SUMMARY,
        "Number of saves, and how long they paused training.",
        lambda of: of.counters.stall.totals,
    ),
    Metric(
        "stepkeeper_checkpoint_saves_failed_total",
        MetricType.COUNTER,
        "Saves that failed.",
        lambda of: of.counters.failed_saves,
    ),
    Metric(
        "stepkeeper_replayed_steps_total",
        MetricType.COUNTER,
        "Steps that were trained a second time, and compared.",
        lambda of: of.counters.replayed_steps,
    ),
    Metric(
        "stepkeeper_replay_differences_total",
        MetricType.COUNTER,
        "Replays that gave other bits.",
        lambda of: of.counters.replay_differences,
    ),
    Metric(
        "stepkeeper_checkpoints_refused_total",
        MetricType.COUNTER,
        "Checkpoints that were refused: damaged, rolled back, or unfit for the program.",
        lambda of: of.counters.refused_checkpoints,
    ),
    Metric(
        "stepkeeper_messages_refused_total",
        MetricType.COUNTER,
        "Messages of the worker that were refused: no messages, or out of their limits.",
        lambda of: of.runner.records.losses.refused,
    ),
    Metric(
        "stepkeeper_messages_left_out_total",
        MetricType.COUNTER,
        "Messages of the worker that were left out, as they came too often.",
        lambda of: of.runner.records.losses.left_out,
    ),
    Metric(
        "stepkeeper_waits_for_storage",
        MetricType.GAUGE,
        "1 while the job waits for a disk: of its checkpoint directory, or of what it is started from.",
        lambda of: of.runner.facts.waits_for_storage,
    ),
    Metric(
        "stepkeeper_proof_exact",
        MetricType.GAUGE,
        "1 if the newest proof found that kills change no bit, 0 if it found a difference; absent without a verdict.",
        lambda of: of.is_exact,
    ),
    Metric(
        "stepkeeper_flush_last_seconds",
        MetricType.GAUGE,
        "How long the last flush took, until the checkpoint was on the disk.",
        lambda of: of.counters.flush.last_s,
    ),
    Metric(
        "stepkeeper_flush_expected_seconds",
        MetricType.GAUGE,
        "Expected time of a flush while all jobs flush, including the step before it and the margin.",
        lambda of: of.flush_expected_s,
    ),
    Metric(
        "stepkeeper_flush_seconds",
        MetricType.SUMMARY,
        "Number and duration of flushes.",
        lambda of: of.counters.flush.totals,
    ),
)
