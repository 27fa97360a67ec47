"""What happened last, in words; and that an error of our own is told with it and survived."""

import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor.config import load_config
from supervisor.core.program import effects as order
from supervisor.core.program import events as fact
from supervisor.core.program.facts import State
from supervisor.host.checkpoint_store import CheckpointStore
from supervisor.host.ledger.ledger import Ledger
from supervisor.host.logs.capture import LogCapture
from supervisor.runner.attempt.services import Services
from supervisor.runner.program.runner import Runner
from supervisor.runner.records.timeline import KEPT, Timeline, describe

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
    runner.startable.set()
    yield runner
    await runner.retire("shutdown")
    if runner.executor.send_signal(signal.SIGKILL):  # the runner was told a lie about its end
        await runner.wait_until(lambda: runner.executor.pid is None or None)
    logs.close()
    ledger.close()


def test_an_event_is_told_with_what_is_known_of_it():
    assert describe(fact.WorkerExited(3, signal=9)) == "worker exited (signal 9)"
    assert describe(order.RecordEnd(3, "crash", "exit status 1")) == "record end (cause crash, text exit status 1)"
    assert describe(fact.StopRequested()) == "stop requested"
    assert describe(fact.WorkerExited(3, code=0)) == "worker exited (code 0)"


def test_what_is_empty_is_not_told_and_sets_are_told_as_lists():
    assert describe(order.SelectCheckpoint(3)) == "select checkpoint"
    assert describe(order.Spawn(3)) == "spawn"
    assert describe(order.Spawn(3, microbatches=4)) == "spawn (microbatches 4)"
    avoided = order.SelectCheckpoint(3, frozenset({"step-2", "step-1"}), before=40)
    assert describe(avoided) == "select checkpoint (avoid step-1 step-2, before 40)"
    assert (
        describe(order.RememberSilences((("step", 2.5), ("save", 10.0))))
        == "remember silences (longest step 2.5 save 10)"
    )


def test_events_that_change_nothing_are_left_out_and_the_oldest_go():
    story = Timeline()
    story.add(fact.StepsDone(1, 1), State.RUNNING, State.RUNNING, 1, [], None)
    for number in range(KEPT + 5):
        story.add(fact.StepsDone(1, number), State.STARTING, State.RUNNING, number, [], None)

    assert len(story.last_entries(10_000)) == KEPT
    assert [each.attempt for each in story.last_entries(2)] == [KEPT + 3, KEPT + 4]


async def test_a_start_and_a_stop_are_in_the_story(runner: Runner):
    runner.post(fact.StartRequested())
    runner.post(fact.StopRequested())
    await runner.wait_until(lambda: runner.state is State.STOPPED or None)

    told = [(each.event, each.was, each.state) for each in runner.timeline.last_entries(20)]
    assert told == [
        ("start requested", "STOPPED", "STARTING"),
        ("spawn succeeded", "STARTING", "RUNNING"),
        ("stop requested", "RUNNING", "STOPPING"),
        ("worker exited (signal 15)", "STOPPING", "STOPPED"),
    ]
    assert "spawn" in runner.timeline.last_entries(20)[0].effects


async def test_an_error_of_our_own_is_logged_with_the_story_and_supervision_goes_on(runner: Runner):
    runner.post(fact.StartRequested())

    with capture_logs() as logged:
        runner.post(fact.WorkerExited(1, code=NONSENSE))

    (error,) = [each for each in logged if each["event"] == "internal.failed"]
    assert "worker exited" in error["on"]
    assert "start requested: STOPPED -> STARTING" in error["story"][0]
    assert runner.state is State.BACKOFF
    assert "internal error" in (runner.reason or "")
    assert "internal error" in runner.timeline.last_entries(1)[0].event


async def test_an_event_that_nobody_knows_changes_nothing(runner: Runner):
    runner.post(fact.StartRequested())
    pid = runner.executor.pid

    with capture_logs():
        runner.post(object())  # type: ignore[arg-type]

    assert (runner.state, runner.executor.pid) == (State.RUNNING, pid)
