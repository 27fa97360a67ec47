"""/metrics of a real daemon, read with Prometheus' own parser and judged by its own tool."""

import http.client
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from supervisor.control.metrics.exposition import MetricFamily, encode
from supervisor.control.metrics.measured_program import BUDGETED
from supervisor.control.metrics.page import exposition, families
from supervisor.control.metrics.sampling import GpuSample, NoticesSample, ProgramSample, Sample
from supervisor.control.metrics.table import JOBS, LABELLED, PROGRAMS, MetricType
from supervisor.core.failures.restart import Cause
from supervisor.core.goodput import TimeSpent
from supervisor.core.program import effects as order
from supervisor.core.program.facts import State
from supervisor.protocol.damage import OlderBecause
from supervisor.protocol.wire import messages
from supervisor.protocol.wire.messages import Then
from supervisor.runner.records.counters import ProgramCounters
from tests.places import ROOT
from tests.system.harness import Daemon, job

DOCUMENTATION = ROOT / "docs" / "metrics.md"
PROMTOOL = shutil.which("promtool")


class Scrape:
    """One answer of /metrics."""

    def __init__(self, daemon: Daemon, accept: str = "") -> None:
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock.connect(str(daemon.socket))
        connection.request("GET", "/metrics", headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        self.status, self.content_type = answer.status, answer.headers["Content-Type"]
        self.text = answer.read().decode()
        connection.close()

    def value(self, name: str, **labels: str) -> float | None:
        for family in parse(self.text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return None


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("metrics")
    plain = "[program:sleeper]\ncommand=/bin/sleep 100000\n[program:idle]\ncommand=/bin/sleep 1\nautostart=false\n"
    with Daemon(folder, plain + job("digits", folder, STEPS=1_000_000, EVERY=1_000_000)) as daemon:
        daemon.until_step("digits", 1)
        daemon.until_state("sleeper", "RUNNING")
        yield daemon


@pytest.mark.integration
def test_programs_are_told_apart_by_state(daemon: Daemon):
    scrape = Scrape(daemon)

    assert scrape.value("stepkeeper_programs", state="STOPPED") == 1
    assert scrape.value("stepkeeper_program_state", program="idle") == 1
    assert scrape.value("stepkeeper_program_up", program="sleeper") == 1
    assert scrape.value("stepkeeper_program_up", program="idle") == 0
    assert scrape.value("stepkeeper_program_wanted", program="idle") == 0
    assert scrape.value("stepkeeper_step", program="sleeper") is None


@pytest.mark.integration
def test_the_time_a_program_took_to_start_is_told_from_the_time_it_ran(daemon: Daemon):
    started_s = Scrape(daemon).value("stepkeeper_program_seconds_total", program="sleeper", spent="starting")

    assert started_s is not None
    assert started_s > 0.9  # startsecs is 1


@pytest.mark.integration
def test_a_commanded_checkpoint_is_measured(daemon: Daemon):
    saved = daemon.call("checkpoint", name="digits")

    scrape = Scrape(daemon)
    assert (scrape.value("stepkeeper_checkpoint_step", program="digits") or 0) >= saved["step"]
    assert scrape.value("stepkeeper_checkpoint_size_bytes", program="digits") == saved["size_bytes"]
    assert abs((scrape.value("stepkeeper_checkpoint_timestamp_seconds", program="digits") or 0) - time.time()) < 60
    assert (scrape.value("stepkeeper_flush_seconds_count", program="digits") or 0) >= 1
    assert (scrape.value("stepkeeper_flush_last_seconds", program="digits") or 0) > 0
    assert (scrape.value("stepkeeper_checkpoint_save_seconds_sum", program="digits") or 0) > 0


@pytest.mark.integration
def test_a_killed_worker_is_counted_by_cause(daemon: Daemon):
    name = "stepkeeper_attempts_ended_total"
    before = Scrape(daemon).value(name, program="digits", cause="crash") or 0
    attempt = daemon.status("digits")["job"]["attempt"]
    os.kill(daemon.status("digits")["pid"], signal.SIGKILL)
    daemon.until(lambda: daemon.status("digits")["job"]["attempt"] > attempt, "the next attempt begins")

    assert Scrape(daemon).value(name, program="digits", cause="crash") == before + 1


@pytest.mark.integration
def test_a_notice_is_told_with_its_deadline_until_it_is_withdrawn(daemon: Daemon):
    assert Scrape(daemon).value("stepkeeper_notices", certainty="certain") == 0
    daemon.call("drill", name="sleeper", in_s=3600)

    scrape = Scrape(daemon)
    assert scrape.value("stepkeeper_notices", certainty="certain") == 1
    deadline_at = scrape.value("stepkeeper_notice_deadline_timestamp_seconds")
    assert deadline_at is not None
    assert abs(deadline_at - time.time() - 3600) < 60

    daemon.call("drill", name="sleeper", withdraw=True)
    scrape = Scrape(daemon)
    assert scrape.value("stepkeeper_notices", certainty="certain") == 0
    assert scrape.value("stepkeeper_notice_deadline_timestamp_seconds") is None


@pytest.mark.integration
def test_the_daemon_speaks_of_its_own_process(daemon: Daemon):
    scrape = Scrape(daemon)

    assert (scrape.value("stepkeeper_process_resident_memory_bytes") or 0) > 1 << 20
    assert scrape.value("stepkeeper_build_info") == 1
    assert scrape.value("stepkeeper_ledger_in_trouble") == 0


@pytest.mark.integration
def test_both_formats_are_read_by_prometheus_own_parser(daemon: Daemon):
    plain, open_metrics = Scrape(daemon), Scrape(daemon, "application/openmetrics-text; version=1.0.0")

    assert plain.content_type.startswith("text/plain; version=")
    assert open_metrics.content_type.startswith("application/openmetrics-text")
    names = {family.name for family in parse(plain.text)}
    assert {family.name for family in parse_openmetrics(open_metrics.text)} <= names | {
        name.removesuffix("_total") for name in names
    }


@pytest.mark.integration
@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian package prometheus)")
def test_promtool_finds_nothing_to_blame(daemon: Daemon):
    scrape = Scrape(daemon)

    checked = subprocess.run(
        [str(PROMTOOL), "check", "metrics"], check=False, input=scrape.text, capture_output=True, text=True, timeout=60
    )

    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def whole_sample(programs: int) -> Sample:
    words: dict[str | None, dict[str, float]] = {
        "state": {"RUNNING": 1.0},
        "cause": dict.fromkeys(BUDGETED, 1.0),
        "because": dict.fromkeys(OlderBecause, 0.0),
        "spent": {"running": 1.0, "down": 2.0},
        "category": dict.fromkeys(TimeSpent, 1.0),
    }
    values = {
        metric.name: words.get(metric.label, (1, 1.0) if metric.kind is MetricType.SUMMARY else 1.0)
        for metric in (*PROGRAMS, *LABELLED, *JOBS)
    }
    return Sample(
        tuple(ProgramSample(f"p{number}", State.RUNNING, values) for number in range(programs)),
        NoticesSample({"possible": 0, "certain": 1}, 2e9, {"file": True}, 30.0),
        is_leaving=False,
        ledger_in_trouble=False,
        logs_in_trouble=0,
        gpus=(GpuSample("GPU-aaaa", is_left_out=True, in_error=True, faults={"xid-79": 1}),),
        gpus_silent=False,
    )


@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.floats()), unique_by=lambda of: of[0]),
    st.tuples(st.integers(0, 1 << 53), st.floats(0, allow_infinity=False)),
)
@example([('a\\n\n"b', math.inf)], (2, 0.5))
def test_any_label_and_number_is_read_back_from_both_formats(
    values: list[tuple[str, float]], summary: tuple[int, float]
):
    gauge = MetricFamily("a_gauge", MetricType.GAUGE, "One \\ of\nthem.", ("word", "other"))
    counter = MetricFamily("a_total", MetricType.COUNTER, "Another.", ("word",))
    times = MetricFamily("times", MetricType.SUMMARY, "How long.")
    for word, value in values:
        gauge.add(value, word, "same")
        counter.add(abs(value) if math.isfinite(value) else 1.0, word)
    gauge.add(None, "not known", "same")
    times.add(summary)

    for accept, read in (("", parse), ("application/openmetrics-text; version=1.0.0, */*", parse_openmetrics)):
        text, content_type = encode([gauge, counter, times], accept)
        families = {family.name.removesuffix("_total"): family for family in read(text.decode())}
        assert families["a_gauge"].documentation == gauge.text
        assert {name: family.type for name, family in families.items()} == KINDS
        samples = [(sample.labels["word"], repr(sample.value)) for sample in families["a_gauge"].samples]
        assert samples == [(word, repr(value)) for word, value in values]
        assert {sample.name for sample in families["a"].samples} <= {"a_total"}
        assert [repr(sample.value) for sample in families["times"].samples] == [repr(part) for part in summary]
        assert ("openmetrics" in content_type) == (accept != "")


KINDS = {"a_gauge": "gauge", "a": "counter", "times": "summary"}


def test_series_grow_with_programs_and_by_few_each():
    one, two = (sum(len(family.values) for family in families(whole_sample(count))) for count in (1, 2))

    assert two - one <= 79


@pytest.mark.thorough
def test_a_thousand_programs_are_put_into_words_quickly():
    taken = whole_sample(1000)

    began = time.process_time()
    text, _ = exposition(taken, "")

    assert time.process_time() - began < 5  # about 0.15 s on an idle machine
    assert text.count(b"stepkeeper_step{") == 1000


def test_every_metric_is_documented_with_its_labels():
    page = DOCUMENTATION.read_text()
    described = {family.name: family for family in families(whole_sample(1))}

    for metric in (*PROGRAMS, *LABELLED, *JOBS):
        assert f"`{metric.name}`" in page
        assert metric.text.rstrip(".") in page
    for family in described.values():
        name, labels = family.name, family.labels
        row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` ")), None)
        assert row is not None, f"docs/metrics.md has no row for {name}"
        assert all(label in row for label in labels), f"the row of {name} lacks one of {labels}"


def test_the_page_has_every_cause_and_says_which_are_always_there():
    always, _, later = DOCUMENTATION.read_text().partition("Causes are those of")[2].partition("always there")

    assert set(re.findall(r"`([a-z-]+)`", always)) == {*BUDGETED, "startretries"}
    assert set(re.findall(r"`([a-z-]+)`", later)) == set(Cause) - set(BUDGETED)


def test_steps_done_again_after_a_death_are_counted_as_repeated():
    counters = ProgramCounters()
    for message in (
        messages.Restored(1, 0, None, 0.0),
        messages.Progress(1, 30),
        messages.Committed(1, 20, "step-0000000020.a1", 10, 1.0, 0.1),
        messages.Restored(2, 20, "step-0000000020.a1", 0.0),
        messages.Progress(2, 25),
    ):
        counters.on_message(message, now=0.0)

    assert (counters.steps, counters.repeated_steps) == (35, 10)


def test_second_report_of_one_restore_counts_no_steps_as_repeated():
    counters = ProgramCounters()
    for message in (
        messages.Restored(1, 0, None, 0.0),
        messages.Progress(1, 30),
        messages.Restored(2, 20, "step-0000000020.a1", 0.0),
        messages.Restored(2, 20, "step-0000000020.a1", 0.0, changed=("batch size of the data is 8, was 4",)),
    ):
        counters.on_message(message, now=0.0)

    assert counters.repeated_steps == 10


def test_adopted_worker_is_not_counted_twice():
    counters = ProgramCounters()
    counters.on_effect(order.RequestIdentity(1), now=0.0)
    for message in (
        messages.Restored(1, 0, None, 0.0),
        messages.Committed(1, 500, "step-0000000500.a1", 10, 1.0, 0.1, ago_s=60.0),
        messages.Progress(1, 520),
        messages.WorkerStatus(1, 77, messages.Phase.TRAINING, 520),
        messages.Progress(1, 525),
        messages.Committed(1, 525, "step-0000000525.a1", 10, 1.0, 0.1),
    ):
        counters.on_message(message, now=1.0)

    assert (counters.steps, counters.repeated_steps, counters.save.count) == (5, 0, 1)


def test_answer_with_a_checkpoint_that_was_there_is_no_save():
    counters = ProgramCounters()
    counters.on_message(messages.Committed(1, 500, "step-0000000500.a1", 10, 1.0, 0.1), now=1.0)
    counters.on_message(messages.Committed(1, 500, "step-0000000500.a1", 10, 1.0, 0.1, (4,), ago_s=60.0), now=2.0)

    assert (counters.save.count, counters.stall.count) == (1, 1)


def test_a_flush_is_timed_from_its_request_to_its_commit():
    counters = ProgramCounters()
    counters.on_effect(order.RequestFlush(1, 4, "operator", Then.GO_ON, 60.0), now=100.0)

    counters.on_message(messages.Committed(1, 9, "step-0000000009.a1", 10, 1.0, 0.1, flushes=(4,)), now=102.5)

    assert (counters.flush.count, counters.flush.last_s) == (1, 2.5)


def test_a_request_of_a_dead_attempt_times_nothing():
    counters = ProgramCounters()
    counters.on_effect(order.RequestFlush(1, 4, "operator", Then.GO_ON, 60.0), now=100.0)
    counters.on_effect(order.Spawn(2), now=101.0)

    counters.on_message(messages.Committed(2, 9, "step-0000000009.a2", 10, 1.0, 0.1, flushes=(4,)), now=110.0)

    assert counters.flush.count == 0
