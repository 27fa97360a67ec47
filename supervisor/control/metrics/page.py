"""The text of `GET /metrics`, as Prometheus reads it.

docs/metrics.md lists every metric. Labels are the program, the GPU, and words of fixed lists: the number of series
grows with the programs and the GPUs, and with nothing else.
"""

import platform
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import psutil

from supervisor import __version__
from supervisor.control.metrics.exposition import MetricFamily, encode
from supervisor.control.metrics.sampling import NoticesSample, ProgramSample, Sample
from supervisor.control.metrics.table import JOBS, LABELLED, PROGRAMS, Metric, MetricType
from supervisor.core.program.facts import State
from supervisor.runner.listeners.hub import PoolCounts


def exposition(sample: Sample, accept: str) -> tuple[bytes, str]:
    """The sample as text and its content type, in the format that the client's Accept header asks for."""
    return encode([*families(sample), *_process_families()], accept)


def families(sample: Sample) -> Iterator[MetricFamily]:
    """Every metric with its values, except those of the daemon's process."""
    yield from _daemon_families(sample)
    yield from _notice_families(sample.notices)
    yield from _pool_families(sample.pools)
    yield from _gpu_families(sample)
    for metric in (*PROGRAMS, *LABELLED, *JOBS):
        yield _family(metric, sample.programs)
    names = {*(program.name for program in sample.programs), *sample.not_shown}
    shown = MetricFamily(
        "stepkeeper_program_shown",
        MetricType.GAUGE,
        "0 if some of the program's metrics can't be computed; the daemon's log says why.",
        ("program",),
    )
    for name in sorted(names):
        shown.add(name not in sample.not_shown, name)
    yield shown


def _process_families() -> Iterator[MetricFamily]:
    """The daemon's process, by the names that Prometheus' own libraries give; bare they would clash in a textfile."""
    process = psutil.Process()
    with process.oneshot():
        memory, cpu = process.memory_info(), process.cpu_times()
        for name, text, value in (
            ("virtual_memory_bytes", "Virtual memory size in bytes.", memory.vms),
            ("resident_memory_bytes", "Resident memory size in bytes.", memory.rss),
            ("start_time_seconds", "Start time of the process since unix epoch in seconds.", process.create_time()),
            ("open_fds", "Number of open file descriptors.", process.num_fds()),
            ("max_fds", "Maximum number of open file descriptors.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ):
            yield _single(f"stepkeeper_process_{name}", text, value)
    text = "Total user and system CPU time spent in seconds."
    total = MetricFamily("stepkeeper_process_cpu_seconds_total", MetricType.COUNTER, text)
    total.add(cpu.user + cpu.system)
    yield total


def _daemon_families(sample: Sample) -> Iterator[MetricFamily]:
    build = MetricFamily(
        "stepkeeper_build_info", MetricType.GAUGE, "Always 1; the labels are versions.", ("version", "python")
    )
    build.add(1, __version__, platform.python_version())
    yield build
    states = MetricFamily("stepkeeper_programs", MetricType.GAUGE, "Number of programs, by state.", ("state",))
    counted = Counter(program.state for program in sample.programs)
    for state in State:
        states.add(counted[state], str(state))
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
        yield _single(name, text, value)


def _notice_families(sample: NoticesSample) -> Iterator[MetricFamily]:
    holding = MetricFamily(
        "stepkeeper_notices",
        MetricType.GAUGE,
        "Number of notices that this host is going away, by certainty.",
        ("certainty",),
    )
    for certainty, count in sample.holding.items():
        holding.add(count, certainty)
    yield holding
    up = MetricFamily("stepkeeper_notice_source_up", MetricType.GAUGE, "1 if a source of notices works.", ("source",))
    for source, answers in sample.sources.items():
        up.add(answers, source)
    yield up
    yield _single(
        "stepkeeper_notice_deadline_timestamp_seconds",
        "When this host will go away, according to the earliest certain notice (Unix time).",
        sample.deadline_wall_at,
    )
    yield _single(
        "stepkeeper_notice_shortest_seconds",
        "The shortest warning that a source of notices gives before this host goes away.",
        sample.shortest_s,
    )


def _pool_families(pools: Mapping[str, PoolCounts]) -> Iterator[MetricFamily]:
    waiting = MetricFamily(
        "stepkeeper_listener_events_waiting",
        MetricType.GAUGE,
        "Events that wait for the listeners of the pool.",
        ("pool",),
    )
    delivered = MetricFamily(
        "stepkeeper_listener_events_total",
        MetricType.COUNTER,
        "Events for the listeners of the pool, by what became of them: accepted, refused (and sent again) or dropped.",
        ("pool", "fate"),
    )
    for name, counts in pools.items():
        waiting.add(counts.waiting, name)
        for fate in ("accepted", "refused", "dropped"):
            delivered.add(getattr(counts, fate), name, fate)
    yield waiting
    yield delivered


def _single(name: str, text: str, value: float | None) -> MetricFamily:
    """A gauge without labels."""
    family = MetricFamily(name, MetricType.GAUGE, text)
    family.add(value)
    return family


def _gpu_families(sample: Sample) -> Iterator[MetricFamily]:
    text = "1 while jobs are started without the GPU, as it failed."
    left_out = MetricFamily("stepkeeper_gpu_left_out", MetricType.GAUGE, text, ("gpu",))
    text = "1 while the GPU is left out, or its driver reports that it can't be used."
    in_error = MetricFamily("stepkeeper_gpu_in_error", MetricType.GAUGE, text, ("gpu",))
    text = "Faults of the GPU in the last four weeks, by kind (docs/gpus.md); kept when the daemon restarts."
    faults = MetricFamily("stepkeeper_gpu_faults", MetricType.GAUGE, text, ("gpu", "fault"))
    for gpu in sample.gpus:
        left_out.add(gpu.is_left_out, gpu.uuid)
        in_error.add(gpu.in_error, gpu.uuid)
        for fault, count in gpu.faults.items():
            faults.add(count, gpu.uuid, fault)
    yield from (left_out, in_error, faults)
    yield _single("stepkeeper_gpus_silent", "1 while NVIDIA's driver does not answer.", sample.gpus_silent)


def _family(metric: Metric, programs: Iterable[ProgramSample]) -> MetricFamily:
    labels = ("program",) if metric.label is None else ("program", metric.label)
    family = MetricFamily(metric.name, metric.kind, metric.text, labels)
    for program in programs:
        value = program.values.get(metric.name)
        if isinstance(value, dict):
            for word, number in value.items():
                family.add(number, program.name, word)
        else:
            family.add(value, program.name)
    return family
