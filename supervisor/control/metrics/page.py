"""The text of `GET /metrics`, as Prometheus reads it.

docs/metrics.md lists every metric. Labels are the program, and words of fixed lists: the number of series grows with
the programs and with nothing else.
"""

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from supervisor import __version__
from supervisor.control.base.isolation import not_shown
from supervisor.control.metrics.sampling import JobSample, NoticesSample, ProgramSample, Sample
from supervisor.control.metrics.table import (
    JOBS,
    LABELLED,
    PROGRAMS,
    JobMetric,
    LabelledMetric,
    MetricType,
    ProgramMetric,
    Value,
)
from supervisor.core.program.facts import State
from supervisor.runner.listeners.hub import PoolCounts

Found = TypeVar("Found")
Shown = TypeVar("Shown", ProgramSample, JobSample)


def exposition(sample: Sample, accept: str) -> tuple[bytes, str]:
    """The sample as text and its content type, in the format that the client's Accept header asks for."""
    registry = CollectorRegistry()
    registry.register(_SampleCollector(sample))
    ProcessCollector(namespace="stepkeeper", registry=registry)  # bare names would clash in a textfile collector
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def families(sample: Sample) -> Iterator[Family]:
    """Every metric with its values, except those of the daemon's process, which the library adds."""
    yield from _daemon_families(sample)
    yield from _notice_families(sample.notices)
    yield from _pool_families(sample.pools)
    broken = set(sample.not_shown)

    def read(name: str, value: Callable[[], Found]) -> Iterator[Found]:
        """The value, or none if it can't be computed: that must not hide the others."""
        try:
            yield value()
        except Exception as error:  # noqa: BLE001 - whatever it is, `stepkeeper_program_shown` says so
            not_shown(name, error)
            broken.add(name)

    for metric in PROGRAMS:
        values = (
            ((program.name,), number)
            for program in sample.programs
            for number in read(program.name, partial(_number, metric.value, program))
        )
        yield _family(metric, ("program",), values)
    for divided in LABELLED:
        parts = (
            ((program.name, word), value)
            for program in sample.programs
            for numbers in read(program.name, partial(_numbers, divided.values, program))
            for word, value in numbers.items()
        )
        yield _family(divided, ("program", divided.label), parts)
    jobs = [(program.name, program.job) for program in sample.programs if program.job is not None]
    for of_job in JOBS:
        yield _family(
            of_job,
            ("program",),
            (((name,), number) for name, job in jobs for number in read(name, partial(_number, of_job.value, job))),
        )
    names = {*(program.name for program in sample.programs), *sample.not_shown}
    shown = GaugeMetricFamily(
        "stepkeeper_program_shown",
        "0 if some of the program's metrics can't be computed; the daemon's log says why.",
        labels=("program",),
    )
    for name in sorted(names):
        shown.add_metric((name,), name not in broken)
    yield shown


def _number(read: Callable[[Shown], Value], sample: Shown) -> Value:
    value = read(sample)
    return value if value is None or isinstance(value, tuple) else float(value)


def _numbers(read: Callable[[Shown], Mapping[str, float]], sample: Shown) -> dict[str, float]:
    return {word: float(value) for word, value in read(sample).items()}


class _SampleCollector(Collector):
    """Gives one sample to the library, which asks a collector for metrics."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def collect(self) -> Iterable[Family]:
        return families(self._sample)


def _daemon_families(sample: Sample) -> Iterator[Family]:
    build = GaugeMetricFamily(
        "stepkeeper_build_info", "Always 1; the labels are versions.", labels=("version", "python")
    )
    build.add_metric((__version__, platform.python_version()), 1)
    yield build
    states = GaugeMetricFamily("stepkeeper_programs", "Number of programs, by state.", labels=("state",))
    counted = Counter(program.state for program in sample.programs)
    for state in State:
        states.add_metric((str(state),), counted[state])
    yield states
    for name, text, value in (
        (
            "stepkeeper_leaving",
            "1 while the daemon flushes and stops its programs in order to exit.",
            sample.is_leaving,
        ),
        (
            "stepkeeper_ledger_in_trouble",
            "1 if the ledger can't be written, or records were lost since the daemon started.",
            sample.ledger_in_trouble,
        ),
        (
            "stepkeeper_logs_in_trouble",
            "Number of log files of programs that can't be written now.",
            sample.logs_in_trouble,
        ),
    ):
        yield GaugeMetricFamily(name, text, value=value)


def _notice_families(sample: NoticesSample) -> Iterator[Family]:
    holding = GaugeMetricFamily(
        "stepkeeper_notices", "Number of notices that this host is going away, by certainty.", labels=("certainty",)
    )
    for certainty, count in sample.holding.items():
        holding.add_metric((certainty,), count)
    yield holding
    up = GaugeMetricFamily("stepkeeper_notice_source_up", "1 if a source of notices works.", labels=("source",))
    for source, answers in sample.sources.items():
        up.add_metric((source,), answers)
    yield up
    for name, text, value in (
        (
            "stepkeeper_notice_deadline_timestamp_seconds",
            "When this host will go away, according to the earliest certain notice (Unix time).",
            sample.deadline_wall_at,
        ),
        (
            "stepkeeper_notice_shortest_seconds",
            "The shortest warning that a source of notices gives before this host goes away.",
            sample.shortest_s,
        ),
    ):
        family = GaugeMetricFamily(name, text, labels=())
        if value is not None:
            family.add_metric((), value)
        yield family


def _pool_families(pools: Mapping[str, PoolCounts]) -> Iterator[Family]:
    waiting = GaugeMetricFamily(
        "stepkeeper_listener_events_waiting", "Events that wait for the listeners of the pool.", labels=("pool",)
    )
    delivered = CounterMetricFamily(
        "stepkeeper_listener_events_total",
        "Events for the listeners of the pool, by what became of them: accepted, refused (and sent again) or dropped.",
        labels=("pool", "fate"),
    )
    for name, counts in pools.items():
        waiting.add_metric((name,), counts.waiting)
        for fate in ("accepted", "refused", "dropped"):
            delivered.add_metric((name, fate), getattr(counts, fate))
    yield waiting
    yield delivered


def _family(
    metric: ProgramMetric | JobMetric | LabelledMetric,
    labels: tuple[str, ...],
    values: Iterable[tuple[tuple[str, ...], Value]],
) -> Family:
    if metric.kind is MetricType.SUMMARY:
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


_FAMILIES: Mapping[MetricType, type[GaugeMetricFamily] | type[CounterMetricFamily]] = {
    MetricType.GAUGE: GaugeMetricFamily,
    MetricType.COUNTER: CounterMetricFamily,
}
