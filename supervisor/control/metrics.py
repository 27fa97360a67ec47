"""What `GET /metrics` gives: the daemon and its programs as Prometheus reads them.

docs/metrics.md lists every metric. Labels are the program, and words of fixed lists: the number of series grows with
the programs and with nothing else.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from supervisor import __version__
from supervisor.control.sampling import JobSample, ProgramSample, Sample
from supervisor.core.facts import State


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
    OfJob("stepkeeper_flush_seconds", Kind.SUMMARY, "How many flushes, and how long they took.", lambda of: of.flushes),
)


def exposition(taken: Sample, accept: str) -> tuple[bytes, str]:
    """The sample as text and its content type, in the format that the client's Accept header asks for."""
    registry = CollectorRegistry()
    registry.register(_Taken(taken))
    ProcessCollector(namespace="stepkeeper", registry=registry)  # bare names would clash in a textfile collector
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def families(taken: Sample) -> Iterator[Family]:
    """Every metric with its values, but those of the process, which are the same in every exporter."""
    yield from _of_daemon(taken)
    for metric in PROGRAMS:
        yield _family(metric, ("program",), (((each.name,), metric.value(each)) for each in taken.programs))
    for divided in DIVIDED:
        values = (((each.name, word), value) for each in taken.programs for word, value in divided.values(each).items())
        yield _family(divided, ("program", divided.label), values)
    jobs = [(each.name, each.job) for each in taken.programs if each.job is not None]
    for of_job in JOBS:
        yield _family(of_job, ("program",), (((name,), of_job.value(job)) for name, job in jobs))


class _Taken(Collector):
    """What the library asks for; it exists for one answer."""

    def __init__(self, taken: Sample) -> None:
        self._taken = taken

    def collect(self) -> Iterable[Family]:
        return families(self._taken)


def _of_daemon(taken: Sample) -> Iterator[Family]:
    build = GaugeMetricFamily(
        "stepkeeper_build_info", "Always 1; the labels are versions.", labels=("version", "python")
    )
    build.add_metric((__version__, platform.python_version()), 1)
    yield build
    states = GaugeMetricFamily("stepkeeper_programs", "Programs in use, by where they stand.", labels=("state",))
    counted = Counter(each.state for each in taken.programs)
    for state in State:
        states.add_metric((str(state),), counted[state])
    yield states
    for name, text, value in (
        ("stepkeeper_leaving", "1 while everything is flushed and stopped for the daemon to leave.", taken.is_leaving),
        (
            "stepkeeper_ledger_in_trouble",
            "1 if the ledger can't be written, or records were lost since the daemon's start.",
            taken.ledger_in_trouble,
        ),
        ("stepkeeper_logs_in_trouble", "Log files of programs that can't be written now.", taken.logs_in_trouble),
    ):
        yield GaugeMetricFamily(name, text, value=value)


def _family(
    metric: OfProgram | OfJob | Divided, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], Value]]
) -> Family:
    if metric.kind is Kind.SUMMARY:
        summary = SummaryMetricFamily(metric.name, metric.text, labels=labels)
        for words, value in values:
            if isinstance(value, tuple):
                summary.add_metric(words, count_value=value[0], sum_value=value[1])
        return summary
    family = _FAMILIES[metric.kind](metric.name, metric.text, labels=labels)
    for words, value in values:
        if value is not None and not isinstance(value, tuple):
            family.add_metric(words, value)
    return family


_FAMILIES: Mapping[Kind, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {
    Kind.GAUGE: GaugeMetricFamily,
    Kind.COUNTER: CounterMetricFamily,
}
