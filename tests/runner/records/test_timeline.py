"""The last events of a program in words; internal errors are logged with them and survived."""

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor.config import load_config
from supervisor.core.notices.notice import Certainty, Notice, NoticeKind
from supervisor.core.program import effects, events
from supervisor.core.program.facts import PendingFlush, State
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.protocol.wire.messages import Then
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.retiring import retire
from supervisor.runner.program.runner import Runner
from supervisor.runner.program.takeover_progress import TakeoverStage
from supervisor.runner.records.timeline import KEPT, Timeline, describe_effect, describe_event

NONSENSE: Any = []  # an exit status that no cell can understand


@pytest.fixture
async def runner(tmp_path: Path) -> AsyncIterator[Runner]:
    path = tmp_path / "test.conf"
    path.write_text("[supervisord]\nnotices=off\n[program:sleeper]\ncommand=/bin/sleep 100000\nstartsecs=0\n")
    ledger, logs = Ledger(tmp_path / "ledger.sqlite3"), LogCapture(tmp_path / "state")
    logs.start()
    state, run = tmp_path / "state", tmp_path / "run"
    services = Services(ledger, logs, CheckpointStore(), state, run, dict(os.environ), server_url=None)
    config = load_config(path, os.environ).programs["sleeper"]
    config = replace(config, stdout_logfile=None, stderr_logfile=None)
    runner = Runner(config, services)
    runner.takeover.advance(TakeoverStage.STARTABLE)
    yield runner
    await retire(runner, "shutdown")
    if runner.current.send_signal(signal.SIGKILL):  # the runner was told a lie about its end
        await runner.wait_until(lambda: runner.pid is None or None)
    logs.close()
    ledger.close()


def test_events_are_described_with_what_is_known_of_them():
    assert describe_event(events.WorkerExited(3, signal=9)) == "worker exited (terminated by SIGKILL)"
    assert describe_event(events.WorkerExited(3, code=0)) == "worker exited (exit status 0)"
    assert describe_event(events.StopRequested()) == "stop requested"
    assert describe_event(events.SpawnFailed(3, "no file", permanent=True)) == (
        "spawn failed (error no file, permanent True)"
    )
    notice = Notice("aws", "i-1", NoticeKind.PREEMPTION, Certainty.CERTAIN, 100.0, False, "spot")
    assert describe_event(events.NoticeReceived(notice)) == "notice received (aws: preemption, certain, spot)"
    committed = events.CheckpointCommitted(3, 516, wall_at=1795808181.4, name="step-0000000516.a3")
    assert describe_event(committed) == "checkpoint committed (step 516, name step-0000000516.a3)"


def test_effects_are_described_as_what_the_daemon_does():
    assert describe_effect(effects.RecordEnd(3, "crash", "exit status 1")) == "record the end: crash (exit status 1)"
    assert describe_effect(effects.SelectCheckpoint(3)) == "select a checkpoint"
    assert describe_effect(effects.Spawn(3)) == "start the process"
    assert describe_effect(effects.Spawn(3, microbatches=4)) == "start the process (each batch in 4 parts)"
    avoided = effects.SelectCheckpoint(3, frozenset({"step-2", "step-1"}), restore_below_step=40)
    assert describe_effect(avoided) == "select a checkpoint (before step 40, avoiding step-1 step-2)"


def test_effects_that_only_the_daemon_needs_are_left_out():
    learned = effects.PersistHangHistory((("data", 0.0034479),))
    timeline = Timeline()

    timeline.add(events.StepsDone(1, 7), State.RUNNING, State.RUNNING, 1, [learned], None)

    assert describe_effect(learned) is None
    assert timeline.last_entries(10) == []


def test_events_that_change_nothing_are_left_out_and_the_oldest_go():
    timeline = Timeline()
    timeline.add(events.StepsDone(1, 1), State.RUNNING, State.RUNNING, 1, [], None)
    for number in range(KEPT + 5):
        timeline.add(events.StepsDone(1, number), State.STARTING, State.RUNNING, number, [], None)

    assert len(timeline.last_entries(10_000)) == KEPT
    assert [entry.attempt for entry in timeline.last_entries(2)] == [KEPT + 3, KEPT + 4]


@pytest.mark.integration
async def test_a_start_and_a_stop_are_in_the_timeline(runner: Runner):
    runner.post(events.StartRequested())
    runner.post(events.StopRequested())
    await runner.wait_until(lambda: runner.state is State.STOPPED or None)

    told = [(entry.event, entry.was, entry.state) for entry in runner.records.timeline.last_entries(20)]
    assert told == [
        ("start requested", "STOPPED", "STARTING"),
        ("spawn succeeded", "STARTING", "RUNNING"),
        ("stop requested", "RUNNING", "STOPPING"),
        ("worker exited (terminated by SIGTERM)", "STOPPING", "STOPPED"),
    ]
    assert "start the process" in runner.records.timeline.last_entries(20)[0].effects


@pytest.mark.integration
async def test_an_internal_error_is_logged_with_the_timeline_and_supervision_goes_on(runner: Runner):
    runner.post(events.StartRequested())

    with capture_logs() as logged:
        runner.post(events.WorkerExited(1, code=NONSENSE))

    (error,) = [each for each in logged if each["event"] == "internal.failed"]
    assert "worker exited" in error["on"]
    assert "start requested: STOPPED -> STARTING" in error["timeline"][0]
    assert runner.state is State.BACKOFF
    assert "internal error" in (runner.reason or "")
    assert "internal error" in runner.records.timeline.last_entries(1)[0].event


@pytest.mark.integration
async def test_a_broken_invariant_is_logged_with_event_and_facts_counted_and_survived(runner: Runner):
    runner.post(events.StartRequested())
    pid = runner.pid
    runner.facts.current.flush = PendingFlush(1, Then.GO_ON)  # which nothing leads to in RUNNING
    runner.facts.deadline_at = 1e12

    with capture_logs() as logged:
        runner.post(events.NoticeEnded())

    (broken,) = [each for each in logged if each["event"] == "invariant.broken"]
    assert broken["invariant"] == "a_flush_is_pending_only_where_it_can_be_answered"
    assert "NoticeEnded()" in broken["on"] and "deadline_at=1000000000000.0" in broken["before"]
    assert "deadline_at=None" in broken["after"]
    assert runner.records.counters.invariants_broken == 1
    assert "report a defect of the daemon: a_flush_is" in runner.records.timeline.last_entries(1)[0].effects[-1]
    assert (runner.state, runner.pid) == (State.RUNNING, pid)


@pytest.mark.integration
async def test_an_unknown_event_changes_nothing(runner: Runner):
    runner.post(events.StartRequested())
    pid = runner.pid

    with capture_logs():
        runner.post(object())  # type: ignore[arg-type]

    assert (runner.state, runner.pid) == (State.RUNNING, pid)
